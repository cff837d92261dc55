//! What a story may do, and what its network shows of it.

use tensorpipe::testing;

use crate::scene::millis;

#[test]
fn a_network_that_outlives_its_story_still_knows_how_long_that_was() {
    let network = testing::run(1, async |network| {
        tokio::time::sleep(millis(3000)).await;
        network.note("the end");
        tokio::time::sleep(millis(2000)).await;
        assert_eq!(network.elapsed(), millis(5000));
        network
    });
    network.note("afterwards");
    assert!(network.elapsed() >= millis(5000));
    assert!(network.trace().is_sorted_by_key(|event| event.at));
}
