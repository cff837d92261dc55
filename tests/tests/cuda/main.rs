//! CUDA devices, on a test driver (`tests/cuda-driver`). Each test runs in a child process, whose loader finds that driver.
#![allow(missing_docs, reason = "a test")]

mod across;
#[allow(dead_code, reason = "the suites are run elsewhere")]
mod bench;
mod calls;
mod captured;
mod channels;
mod counts;
mod driver;
mod fixture;
mod foreign;
mod ipc;
#[allow(dead_code, reason = "those of main memory are run elsewhere")]
#[path = "../lanes/mod.rs"]
mod lanes;
mod late;
mod lent;
mod liars;
mod pieces;
mod probing;
mod random;
mod segments;
mod slices;
mod unanswered;
mod unfinished;

use tensorpipe::Context;
use tensorpipe::conformance::device::{self, Subject};
use tensorpipe::device::cuda::CudaDevices;
use tensorpipe_test_cuda::Driver;
use tensorpipe_tests::{Child, runtime, say};

use driver::{faults, rests, waits};
use fixture::CudaFixture;

/// Tests whose story a child tells, on whose devices nothing goes wrong. The child's role is the test's name.
macro_rules! stories {
    ($(fn $test:ident() { $story:expr })*) => {
        $(#[test] fn $test() { tell(stringify!($test), &[]); })*

        /// The story of this name.
        fn story(role: &str) -> Option<fn()> {
            match role {
                $(stringify!($test) => Some(|| $story),)*
                _ => None,
            }
        }
    };
}

stories! {
    fn every_pair_of_devices_has_a_way() { runtime().block_on(channels::every_pair_has_a_way()) }
    fn nobody_waits_for_a_device() { runtime().block_on(channels::nobody_waits()) }
    fn nobody_waits_for_a_program_s_work_at_the_first_transfer() { runtime().block_on(channels::nobody_waits_at_first()) }
    fn a_tensor_goes_to_main_memory_in_pieces_as_the_driver_counts() { runtime().block_on(channels::pieces_to_main_memory()) }
    fn what_has_not_come_from_a_device_takes_no_budget() { runtime().block_on(channels::what_has_not_come_takes_no_budget()) }
    fn a_late_source_holds_up_nobody() { runtime().block_on(channels::a_late_source_holds_up_nobody()) }
    fn a_device_that_stands_still_takes_little_main_memory() { runtime().block_on(channels::a_device_that_stands_still_takes_little()) }
    fn a_call_of_the_driver_that_fails_costs_one_message_and_what_comes_next_goes() { runtime().block_on(channels::calls_fail()) }
    fn what_the_cpu_copies_of_pieces_holds_up_nobody() { runtime().block_on(pieces::are_placed_without_the_lock()) }
    fn pieces_that_a_channel_mixes_up_are_no_tensor() { runtime().block_on(pieces::that_are_mixed_up_are_refused()) }
    fn a_piece_that_a_channel_asks_for_late_comes() { runtime().block_on(pieces::that_are_asked_for_late_come()) }
    fn main_memory_of_an_ordinary_peer_reaches_devices() { runtime().block_on(channels::with_an_ordinary_peer()) }
    fn what_is_required_goes_so_or_not_at_all() { runtime().block_on(channels::required()) }
    fn a_slice_is_a_tensor_and_a_slice_again() { slices::there_and_back() }
    fn tensors_of_other_libraries_come_and_go_by_dlpack() { slices::by_dlpack() }
    fn a_tensor_that_is_dropped_is_freed_behind_its_work() { slices::dropped_under_work() }
    fn memory_is_filled_and_read_by_work_of_ones_own() { slices::filled_by_hand() }
    fn work_of_ones_own_reads_what_is_there() { slices::read_by_hand() }
    fn memory_that_is_given_up_is_used_again_behind_its_work() { slices::given_up() }
    fn main_memory_is_kept_until_it_is_copied() { slices::sources_are_kept() }
    fn a_copy_to_another_device_waits_for_its_source() { slices::copied_to_another_device() }
    fn a_callback_that_panics_takes_nobody_along() { slices::a_callback_panics() }
    fn memory_of_another_device_is_not_borrowed_from_this_driver_s() { slices::borrowed_by_device() }
    fn what_is_on_devices_outlives_every_handle_on_them() { slices::outlive_their_devices() }
    fn a_reader_that_gives_no_proof_gets_tensors_another_way() { ipc::stalls::gives_no_proof() }
    fn a_proof_that_is_heard_of_when_it_is_withdrawn_keeps_no_tensor_back() { ipc::stalls::hears_late() }
    fn an_offer_of_memory_that_was_freed_is_none_of_what_lies_there_now() { ipc::replays::freed() }
    fn allocations_are_counted_before_one_is_passed_on() { foreign::counted_first() }
    fn a_driver_that_is_long_in_passing_memory_on_locks_no_pipe() { foreign::passed_on_late() }
    fn a_driver_that_is_long_in_releasing_memory_holds_up_no_event() { foreign::released_late() }
    fn an_owner_that_is_long_in_going_holds_up_no_event() { foreign::owner_goes_late() }
    fn an_owner_s_code_runs_on_a_thread_that_may_wait() { foreign::owner_goes_elsewhere() }
    fn a_lasting_error_that_the_driver_has_for_an_event_ends_its_waits_and_its_memory_is_lost() { unanswered::waits_end() }
    fn an_event_that_a_driver_does_not_answer_for_while_a_graph_is_captured_is_asked_again() { unanswered::asked_again() }
    fn a_stream_of_another_device_of_the_driver_s_is_refused() { slices::another_device_s_stream() }
    fn a_stream_that_is_each_thread_s_own_is_refused() { slices::stream_per_thread() }
    fn a_slice_is_taken_out_behind_work_that_another_handle_has_queued_last() { slices::taken_by_the_last() }
    fn a_wait_of_cudarc_s_that_the_driver_refuses_makes_no_tensor_and_no_slice() { slices::cudarcs_wait_fails() }
    fn a_graph_that_a_program_captures_survives_every_channel() { runtime().block_on(captured::goes_on()) }
    fn pinned_memory_that_another_library_frees_ends_no_capture() { captured::pinned_of_others() }
    fn what_is_dropped_while_a_driver_captures_its_stream_goes_when_the_capture_has_ended() { runtime().block_on(captured::dropped()) }
    fn a_piece_that_is_pinned_for_a_driver_is_no_longer_than_honest_readers_ask_for() { runtime().block_on(liars::asks_for_all()) }
    fn a_driver_pins_little_for_a_long_copy() { runtime().block_on(late::copied_in_pieces()) }
    fn a_driver_pins_whole_pages_for_long_main_memory() { late::rounded() }
    fn a_driver_that_is_long_in_making_memory_for_a_tensor_locks_no_pipe() { late::made_for_a_tensor() }
    fn a_driver_that_is_long_in_unmapping_memory_holds_up_no_event() { late::unmapped() }
    fn a_driver_s_descriptors_of_what_was_lent_are_closed_when_there_are_many() { runtime().block_on(lent::closed()) }
    fn every_call_leaves_a_program_its_current_context() { slices::current_context() }
    fn the_last_handle_on_something_leaves_no_context_current() { slices::no_current_context() }
    fn main_memory_that_a_driver_is_to_unpin_holds_up_nobody_and_is_little() { runtime().block_on(late::unpinned()) }
    fn a_driver_that_is_long_in_unpinning_main_memory_holds_up_no_mapping() { runtime().block_on(late::unmapped_meanwhile()) }
    fn a_driver_that_is_long_in_freeing_main_memory_holds_up_no_event() { runtime().block_on(late::freed()) }
    fn a_driver_that_is_long_in_freeing_main_memory_holds_up_no_end_of_its_devices() { late::let_go() }
    fn a_driver_that_lets_nothing_go_costs_nothing_else() { late::failing() }
    fn a_driver_that_is_long_in_opening_a_device_holds_up_no_pool() { late::opened() }
    fn a_driver_that_is_long_in_making_memory_holds_up_no_event() { late::made() }
    fn where_nothing_is_taken_any_more_nothing_is_fetched() { runtime().block_on(liars::fetched_no_more()) }
    fn what_is_borrowed_is_copied_before_it_is_lent_on() { foreign::borrowed_goes_on() }
    fn other_streams_of_a_slice_are_waited_for_and_wait() { slices::two_streams_of_cudarcs() }
}

/// A child tells this story, with variables for the driver, and ends well.
fn tell(role: &str, variables: &[(&str, &str)]) {
    let driver = Driver::load();
    ends_well(&play(&driver, role, variables), role);
}

/// It has told its story, did nothing wrong on the devices, and waited for none.
fn ends_well(child: &Child, role: &str) {
    let told = child.hears_within("told", std::time::Duration::from_secs(100));
    assert_eq!(told.as_deref(), Some(role), "{}", child.complaints());
    assert_eq!(child.hear("faults"), "");
    assert_eq!(child.hear("waits"), "0", "calls that wait for a device");
}

/// Tells it, and asks for faults when all that it had is gone, the last of it behind its work.
fn told(role: &str, story: impl FnOnce()) {
    story();
    std::thread::sleep(std::time::Duration::from_millis(50));
    say("told", role);
    say("faults", faults().join("; "));
    say("waits", waits());
}

#[test]
fn child() {
    let Some(role) = tensorpipe_tests::role() else {
        return;
    };
    if let Some(story) = story(&role) {
        return told(&role, story);
    }
    match &*role {
        "suite" => runtime().block_on(suite()),
        "route" => runtime().block_on(route()),
        "calls serves" => calls::serves(),
        "ipc reads" => ipc::reads(),
        "ipc fills" => told(&role, ipc::lending::fills),
        "ipc lends" => ipc::lends(),
        "ipc claims" => ipc::replays::claims(),
        "across" => told(&role, across::echoes),
        "foreign goes" => told(&role, foreign::goes),
        "foreign lends" => foreign::lends(),
        "never ends" => unfinished::never_ends(),
        "handed over" => told(&role, || runtime().block_on(channels::handed_over())),
        "meetings" => told(&role, random::meetings),
        "full" => told(&role, || runtime().block_on(channels::full())),
        "warm" => told(&role, late::warm),
        "without pools" => told(&role, slices::dropped_without_pools),
        "counts" => counts::counts(),
        "opens" => probing::opens(),
        "opens no file" => probing::opens_no_file(),
        "ordinary" => runtime().block_on(probing::ordinary()),
        role => panic!("no role {role}"),
    }
}

/// Plays a role where this driver is found, and others are not.
fn play(driver: &Driver, role: &str, variables: &[(&str, &str)]) -> Child {
    let path = driver.path();
    let path = path.to_str().expect("a path of letters");
    let variables = [variables, &[("LD_LIBRARY_PATH", path)]].concat();
    Child::start(role, &variables)
}

async fn suite() {
    let subject = || {
        rests();
        Subject::new(CudaFixture::on(&CudaDevices::open().unwrap()))
    };
    let names = device::all(subject).await;
    say("scenarios", names.len());
    say("faults", faults().join("; "));
    say("waits", waits());
}

#[test]
fn the_device_suite_holds() {
    let driver = Driver::load();
    let child = play(&driver, "suite", &[]);
    assert_eq!(child.hear("scenarios"), device::SCENARIOS.len().to_string());
    assert_eq!(child.hear("faults"), "");
    assert_eq!(child.hear("waits"), "0");
}

#[test]
fn within_a_process_memory_is_handed_over() {
    for (peers, is_direct) in [("", false), ("0-1,1-0", true)] {
        let driver = Driver::load();
        let child = play(&driver, "handed over", &[("TEST_CUDA_PEERS", peers)]);
        let detours: u64 = child.hear("detours").parse().expect("a number");
        assert_eq!(detours == 0, is_direct, "{detours} by way of main memory");
        ends_well(&child, "handed over");
    }
}

/// Main memory that the driver does not take is copied once more.
#[test]
fn without_registered_memory_every_pair_has_a_way_too() {
    let refuses = ("TEST_CUDA_REFUSES", "cuMemHostRegister");
    tell("every_pair_of_devices_has_a_way", &[refuses]);
}

#[test]
fn where_devices_of_the_driver_s_reach_each_other_so_do_their_streams() {
    let peers = ("TEST_CUDA_PEERS", "0-1,1-0");
    tell(
        "a_stream_of_another_device_of_the_driver_s_is_refused",
        &[peers],
    );
}

/// A device without room costs the message that needs it, and nothing else.
#[test]
fn a_full_device_is_a_typed_error_and_what_comes_next_goes() {
    tell("full", &[("TEST_CUDA_MEMORY", "33554432")]);
}

/// An allocation frees as much warm memory as it lacks, and none if it can be had in no case.
#[test]
fn a_length_that_a_driver_cannot_have_takes_no_warm_memory() {
    tell("warm", &[("TEST_CUDA_MEMORY", "67108864")]);
}

/// The thread that frees memory waits there, so that waits are not counted.
#[test]
fn on_a_device_without_memory_pools_a_drop_waits_for_no_work() {
    let driver = Driver::load();
    let child = play(&driver, "without pools", &[("TEST_CUDA_POOLS", "0")]);
    let told = child.hears_within("told", std::time::Duration::from_secs(100));
    assert_eq!(
        told.as_deref(),
        Some("without pools"),
        "{}",
        child.complaints()
    );
    assert_eq!(child.hear("faults"), "");
}

#[test]
fn whatever_a_lane_of_devices_says_nothing_is_left() {
    tell("meetings", &[("TEST_CUDA_DELAY_US", "50")]);
}

/// What a pipe's route says of channels that the context would have.
async fn route() {
    let context = Context::builder().try_cuda(&CudaDevices::open());
    let context = context.build().unwrap();
    let listener = context.listen(["memory://route"]).await.unwrap();
    let (client, server) = tokio::join!(context.connect(listener.url()), listener.accept());
    for (end, pipe) in [("client", client.unwrap()), ("server", server.unwrap())] {
        let route = pipe.route();
        let of_devices = route
            .refused
            .iter()
            .filter(|one| one.candidate.contains("cuda"));
        let words = of_devices.map(|one| format!("{}: {}", one.candidate, one.reason));
        say(end, words.collect::<Vec<_>>().join("; "));
    }
}

#[test]
fn routes_say_why_there_are_no_devices() {
    let driver = Driver::load();
    let child = play(&driver, "route", &[("TEST_CUDA_VERSION", "11080")]);
    let why = "the CUDA driver is one of CUDA 11.8: install one of CUDA 12.0 or later";
    let of_devices = ["cuda_xth", "cuda_ipc", "cuda_gdr"];
    let expected = of_devices.map(|name| format!("channel {name}: {why}"));
    assert_eq!(child.hear("client"), expected.join("; "));
    assert_eq!(child.hear("server"), expected.join("; "));
}

/// Whatever this machine has: with an adapter it is about the driver, without one about that.
#[test]
fn with_each_driver_routes_say_what_gpudirect_rdma_lacks() {
    let adapters = std::fs::read_dir("/sys/class/infiniband");
    let has_adapters = adapters.is_ok_and(|mut adapters| adapters.next().is_some());
    let driver = Driver::load();
    for (dma_bufs, with_adapters) in [("0", "reach the GPUs"), ("1", "by a dma-buf")] {
        let child = play(&driver, "route", &[("TEST_CUDA_DMA_BUFS", dma_bufs)]);
        for end in ["client", "server"] {
            let said = child.hear(end);
            let words = if has_adapters {
                with_adapters
            } else {
                "no RDMA device"
            };
            let (_, reason) = said.split_once("channel cuda_gdr: ").expect("it is listed");
            assert!(reason.contains(words), "{said}");
        }
    }
}
