//! A server that is there, and answers nothing.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use futures_util::future::join_all;
use tensorpipe::testing;
use tensorpipe_rpc::{CallError, Replicas, Server, tensor_service};
use tokio::time::sleep;

use crate::scene::millis;

#[tensor_service]
trait Desk {
    async fn ask(&self);
}

#[derive(Default)]
struct Clerk {
    hangs: AtomicBool,
    asked: AtomicU32,
}

impl Desk for Arc<Clerk> {
    async fn ask(&self) {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.hangs.load(Ordering::Relaxed) {
            std::future::pending::<()>().await;
        }
        sleep(millis(100)).await;
    }
}

/// Twenty callers for a minute, of which the first two seconds show that one server hangs.
#[test]
fn a_server_that_hangs_costs_one_call_for_each_time_that_it_is_tried_again() {
    testing::run(1, async |network| {
        let clerks = [Arc::<Clerk>::default(), Arc::default()];
        let mut servers = Vec::new();
        for (name, clerk) in ["hung", "well"].into_iter().zip(&clerks) {
            let host = network.host(name);
            let context = host.context().build().unwrap();
            let server = Server::builder().context(&context);
            let server = server.service(DeskService::new(clerk.clone()));
            servers.push(server.listen(host.url(1)).await.unwrap());
        }
        let context = network.host("client").context().build().unwrap();
        let urls = servers.iter().map(|server| server.url().to_string());
        let replicas = Replicas::builder().urls(urls).context(&context);
        let replicas = replicas.connect().await.unwrap();
        let client = DeskClient::on(&replicas).await.unwrap();
        let client = client.with_deadline(millis(2_000));
        sleep(millis(100)).await;

        clerks[0].hangs.store(true, Ordering::Relaxed);
        let (early, late) = (Cell::new(0), Cell::new(0));
        let calling = (0..20).map(async |_| {
            while network.elapsed() < millis(60_000) {
                match client.ask().await {
                    Ok(()) => {}
                    Err(CallError::Deadline { .. }) => {
                        let is_early = network.elapsed() < millis(3_000);
                        let count = if is_early { &early } else { &late };
                        count.set(count.get() + 1);
                    }
                    Err(error) => panic!("{error}"),
                }
            }
        });
        join_all(calling).await;
        assert!(early.get() >= 5, "{early:?}");
        // It is tried at least every 7 s, and by one call at a time.
        assert!((8..=29).contains(&late.get()), "{late:?}");

        clerks[0].hangs.store(false, Ordering::Relaxed);
        sleep(millis(10_000)).await;
        client.ask().await.unwrap();
        client.ask().await.unwrap();
        let before = clerks[0].asked.load(Ordering::Relaxed);
        for _ in 0..20 {
            client.ask().await.unwrap();
        }
        let asked = clerks[0].asked.load(Ordering::Relaxed) - before;
        assert_eq!(asked, 10, "its full share");
    });
}
