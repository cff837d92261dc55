//! Everything at once on a multi-threaded runtime, every byte compared.

use super::*;

/// Writers and readers on clones of both ends of one pipe, in both directions.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_tasks_on_one_pipe() {
    every_way(async |context, client, server| {
        let mut tasks = tokio::task::JoinSet::new();
        const TASKS: u64 = 4;
        const EACH: u64 = 100;
        let len = |number: u64| (number.wrapping_mul(2_654_435_761) % 300_000) as usize;
        for (from, to) in [(&client, &server), (&server, &client)] {
            for task in 0..TASKS {
                let pipe = from.clone();
                tasks.spawn(async move {
                    for i in 0..EACH {
                        let number = task * EACH + i;
                        match i % 3 {
                            0 => pipe.write(message(number, len(number))).await.unwrap(),
                            1 => drop(pipe.send(message(number, len(number))).unwrap()),
                            _ => drop(pipe.write(message(number, len(number)))),
                        }
                    }
                    Vec::new()
                });
                let pipe = to.clone();
                tasks.spawn(async move {
                    let mut seen = Vec::new();
                    for _ in 0..EACH {
                        let message = pipe.read().await.unwrap();
                        let number = u64::from_le_bytes(message.metadata[..].try_into().unwrap());
                        check(&message, number, len(number));
                        seen.push(number);
                    }
                    seen
                });
            }
        }
        let mut all: Vec<u64> = soon("the tasks", tasks.join_all()).await.concat();
        all.sort_unstable();
        let wanted: Vec<u64> = (0..TASKS * EACH)
            .flat_map(|number| [number, number])
            .collect();
        assert_eq!(all, wanted);
        soon("close", async {
            tokio::join!(client.close(), server.close())
        })
        .await
        .0
        .unwrap();
        memory_is_back(&context).await;
    })
    .await;
}

/// Pipes come and go while others work.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn many_pipes_come_and_go() {
    every_way(async |context, _, _| {
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        let url = listener.url().to_string();
        let accepting = tokio::spawn(async move {
            let mut echoes = tokio::task::JoinSet::new();
            for _ in 0..64 {
                let pipe = listener.accept().await.unwrap();
                echoes.spawn(async move {
                    while let Ok(message) = pipe.read().await {
                        if pipe.write(message).await.is_err() {
                            break;
                        }
                    }
                });
            }
            echoes.join_all().await;
        });
        let mut clients = tokio::task::JoinSet::new();
        for client in 0..64u64 {
            let (context, url) = (context.clone(), url.clone());
            clients.spawn(async move {
                let pipe = context.connect(&url).await.unwrap();
                for i in 0..5 {
                    let len = ((client + i) % 5) as usize * 60_000;
                    let (written, read) = tokio::join!(pipe.write(message(i, len)), pipe.read());
                    written.unwrap();
                    check(&read.unwrap(), i, len);
                }
                // Half of them leave without a word.
                if client % 2 == 0 {
                    pipe.close().await.unwrap();
                }
            });
        }
        soon("the clients", clients.join_all()).await;
        soon("the echoes", accepting).await.unwrap();
        memory_is_back(&context).await;
    })
    .await;
}
