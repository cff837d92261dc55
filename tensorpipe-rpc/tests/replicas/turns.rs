//! Who is called next.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tensorpipe_rpc::{Replicas, Server, tensor_service};

use super::lab::{soon, tcp};

#[tensor_service]
trait Heavy {
    async fn lift(&self);
}

#[tensor_service]
trait Light {
    async fn lift(&self);
}

/// How often each service has run on one server.
#[derive(Default)]
struct Runs {
    heavy: AtomicU32,
    light: AtomicU32,
}

impl Heavy for Arc<Runs> {
    async fn lift(&self) {
        self.heavy.fetch_add(1, Ordering::Relaxed);
    }
}

impl Light for Arc<Runs> {
    async fn lift(&self) {
        self.light.fetch_add(1, Ordering::Relaxed);
    }
}

#[tokio::test]
async fn clients_that_call_in_step_both_reach_all_servers() {
    let context = tcp();
    let runs = [Arc::<Runs>::default(), Arc::default()];
    let mut servers = Vec::new();
    for runs in &runs {
        let server = Server::builder().context(&context);
        let server = server.service(HeavyService::new(runs.clone()));
        let server = server.service(LightService::new(runs.clone()));
        servers.push(server.listen("tcp://127.0.0.1:0").await.unwrap());
    }
    let urls = servers.iter().map(|server| server.url().to_string());
    let replicas = Replicas::builder().context(&context).urls(urls);
    let replicas = replicas.connect().await.unwrap();
    let heavy = HeavyClient::on(&replicas).await.unwrap();
    let light = LightClient::on(&replicas).await.unwrap();
    let all = |count: fn(&Runs) -> &AtomicU32| {
        let mut runs = runs.iter();
        runs.all(|runs| count(runs).load(Ordering::Relaxed) > 0)
    };
    while !all(|runs| &runs.heavy) {
        soon(heavy.lift()).await.unwrap();
    }
    while !all(|runs| &runs.light) {
        soon(light.lift()).await.unwrap();
    }
    for runs in &runs {
        runs.heavy.store(0, Ordering::Relaxed);
        runs.light.store(0, Ordering::Relaxed);
    }
    for _ in 0..100 {
        soon(heavy.lift()).await.unwrap();
        soon(light.lift()).await.unwrap();
    }
    for runs in &runs {
        for runs in [&runs.heavy, &runs.light] {
            let runs = runs.load(Ordering::Relaxed);
            assert!((45..=55).contains(&runs), "{runs} of 100");
        }
    }
}
