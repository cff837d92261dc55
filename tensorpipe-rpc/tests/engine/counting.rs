//! System calls per call: a clock tells a busy machine, a counter tells a wasteful engine.

use super::lab::{Both, both, tcp};
use tensorpipe_rpc::ServerLimits;

#[tokio::test]
async fn a_hot_echo_is_one_write_and_one_read_at_each_end() {
    let Both { client, server, .. } = both(tcp(), tcp(), ServerLimits::default()).await;
    for _ in 0..100 {
        client.echo("hot").await.unwrap();
    }
    let near = client.connection().pipe().clone();
    let far = server.pipes().remove(0);
    let before = (near.stats(), far.stats());
    const CALLS: u64 = 1000;
    for _ in 0..CALLS {
        client.echo("hot").await.unwrap();
    }
    let after = (near.stats(), far.stats());
    for (end, before, after) in [("near", before.0, after.0), ("far", before.1, after.1)] {
        let (writes, reads) = (after.writes - before.writes, after.reads - before.reads);
        // Credit is given back now and then; a keep-alive may fall in.
        assert!(writes <= CALLS + CALLS / 50, "{end}: {writes} writes");
        assert!(reads <= CALLS + CALLS / 50, "{end}: {reads} reads");
        let bytes = (after.bytes_out - before.bytes_out) / CALLS;
        assert!(bytes < 128, "{end}: {bytes} bytes a call");
        assert_eq!(after.bytes_copied, before.bytes_copied);
    }
}
