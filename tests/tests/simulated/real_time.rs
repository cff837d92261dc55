//! A network in real time, on a runtime of several threads; beside them threads that have none.

use tensorpipe::Message;
use tensorpipe::testing::Network;

use crate::scene::millis;

#[test]
fn a_plain_thread_may_write_and_let_go_while_bytes_are_on_their_way() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let network = Network::new(1);
    let (server, client) = (network.host("server"), network.host("client"));
    let connected = runtime.block_on(async {
        let listener = server.context().build()?.listen([server.url(1)]).await?;
        let context = client.context().build()?;
        tokio::try_join!(context.connect(server.url(1)), listener.accept())
    });
    let (pipe, accepted) = connected.unwrap();
    network.link("client", "server").delay(millis(50));
    for _ in 0..3 {
        pipe.send(Message::new("under way")).unwrap();
    }
    // Whoever closes a pipe drives it, and here its next bytes are yet to come.
    drop(accepted);
    drop(runtime);
    drop(pipe);
}
