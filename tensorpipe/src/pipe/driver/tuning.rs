//! What was tuned: each with its unit, the figure that it came from, and the command that measured it.
//!
//! All constants of the pipe are here, also mere bounds. *Measured* gives a figure and, where the repository has them, the command and its
//! section in `benches/RESULTS.md`. *Chosen* means that no measurement says which value is best: a constant that costs time gives the range
//! within which all values measure the same (`benches/RESULTS.md`, "Tuned numbers"), any other is a bound. Constants of the protocol, the
//! rings and the streams stand in their own modules.

use std::time::Duration;

// Driving: when it yields.

/// Rounds of work in one poll of a task. Chosen between 4 and 64, which measure the same.
pub(super) const ROUNDS: usize = 16;

/// How long a forgotten future can delay the others of its pipe. Chosen. While something happens, a tick costs one wake; an
/// idle pipe has none, since it took 0.5 to 1.25 % of a core. Measured: `tp-bench idle --system pipe@shm,rpc@shm --seconds 2
/// --pin`.
pub(in crate::pipe) const TICK: Duration = Duration::from_millis(50);

// Busy-polling: how long, and for how many.

/// The usual time to poll, at most. As long as a wake-up at both ends, so that polling in vain costs at most as much again. From
/// measured wake-ups of some 20 µs at each end: `tp-bench limits` (round trips spinning and asleep).
pub(super) const POLL_LONGEST: Duration = Duration::from_micros(50);

/// Polling for less than this is not worth starting. Chosen between 0 and 10 µs, which measure the same.
pub(super) const POLL_SHORTEST: Duration = Duration::from_micros(3);

/// A sleep up to this long would have been better spent polling. Chosen between 50 and 300 µs, which measure the same: twice
/// [`POLL_LONGEST`].
pub(super) const SHORT_SLEEP: Duration = Duration::from_micros(100);

/// A thread that takes no longer than this for each pipe that it drives has no time to sleep. If the pipes sleep, a call takes 10 µs of
/// each end's thread over 100 connections, and 19 over 1000; if they poll, 4 and 8. Measured: `tp-bench connections --system rpc@shm
/// --connections 1,10,100,1000 --seconds 0.4 --runtime current --pin`.
pub(super) const BUSY_SLICE: Duration = Duration::from_micros(15);

/// If for [`POLL_LONGEST`] nothing has come for any pipe that a thread polls, others have taken its core since the last time, and polls have
/// not [paid](POLLS_PAY), it polls none until so often bytes have come: while it polls, a peer that shares its core cannot run. Measured, both
/// ends on one core: with 100 and 1000 connections 85 and 93 thousand calls a second, without this 12 and 44. Chosen between 64 and 256, which
/// measure the same. `taskset -c 0 tp-bench connections --system rpc@shm --connections 100,1000 --seconds 0.6 --runtime current`; RESULTS,
/// "Many connections".
pub(super) const PAUSE: u64 = 64;

/// How long such a pause lasts at most, however little comes. Chosen.
pub(super) const PAUSE_LONGEST: Duration = Duration::from_millis(100);

/// So many polls that found something are worth a [`POLL_LONGEST`] in vain on a core that others want. Measured beside four shell loops:
/// with 2, a thread of 1000 connections makes half as many calls. `tp-bench connections --system rpc@shm --connections 1000 --seconds 1
/// --runtime current --pin`.
pub(super) const POLLS_PAY: u64 = 16;

/// A thread from which the system has taken the core so often, and on average more than once a millisecond, shares it with its peer: each
/// write wakes the other one, which runs at once. Chosen: other programs that keep a core busy take it every few milliseconds.
pub(super) const PREEMPTIONS: u64 = 8;

/// As [`PAUSE`], for a thread that shares its core with its peer. Measured over tcp, both ends on one core, thousands of calls a second with
/// 1, 2 and 4 connections: 43, 47, 54, without this 32, 41, 51. Chosen: some twenty times as many as the polls in vain that find it out.
/// `taskset -c 0 tp-bench connections --system rpc@tcp --connections 1,2,4 --seconds 0.6 --runtime current`.
pub(super) const LONG_PAUSE: u64 = 512;

/// Other pipes that are driven for each poll of one, above which polls that are system calls stop. Measured between 1 and 8:
/// with 1 a thread with two to ten connections that call all the time makes 0.8 as many calls, with 4 one with ten 0.9. `tp-bench
/// connections --system rpc@tcp --connections 1,2,4,10,30,100,1000 --seconds 0.4 --runtime current --pin`; RESULTS, "Many connections".
pub(super) const SOCKETS_POLLED: u64 = 8;

/// For so many polls after something has come for a pipe that slept, a thread that polls sockets lets its runtime look at all of them first.
/// Measured over tcp, 2, 4 and 10 connections that call all the time: the one that makes the fewest calls makes 1.0, 1.0 and 0.94 of an
/// average one's, without this 0.55, 0.08 and 0.16. Chosen between 16 and 1024, which measure the same. `tp-bench connections --system rpc@tcp
/// --connections 2,4,10 --seconds 0.5 --runtime multi --pin`; RESULTS, "Many connections".
pub(super) const SLEEPER_POLLS: u64 = 128;

/// To the pipes of a thread that polls sockets, bytes may come so often before its runtime looks at all sockets, a microsecond's work. Measured:
/// beside 1, 2 and 4 connections over tcp that call all the time, a call on a further one, which rests for 2 ms before each, takes 60, 64 and
/// 57 µs, without this and [`SLEEPER_POLLS`] 143, 245 and 276. With 4 an echo takes 1.02 to 1.05 times as long. `tp-bench connections --rare
/// --system rpc@tcp --connections 1,2,4,10 --seconds 0.35 --runtime current --pin`; RESULTS, "Many connections".
pub(super) const ARRIVALS_PER_LOOK: u64 = 8;

/// On a runtime of several workers a socket is polled only if the process has had bytes from it, and from no other, so often in a row. Chosen: of
/// two that are busy, seldom does one have so many. Measured over tcp, 2, 4 and 10 connections: the one that makes the fewest calls makes 1.00,
/// 0.93 and 0.93 of an average one's, where all are polled 0.78, 0.22 and 0.56. `tp-bench connections --system rpc@tcp --connections 2,4,10
/// --seconds 0.3 --runtime multi`; RESULTS, "Many connections".
pub(super) const SOCKET_ALONE: u32 = 8;

/// The most signs that polling would pay (short sleeps, or writes that find the peer awake) before it is tried again. The number doubles
/// each time that polling was in vain. Chosen: for short sleeps all between 32 and 2048 measure the same.
pub(super) const SIGNS_MOST: u32 = 256;

/// A sleep up to this long may be two wake-ups of slow cores, so an end tries once to poll for as long. Below the millisecond that a
/// runtime's timer takes at least. Measured: where a wake-up takes 60 to 270 µs, calls take 1.7 µs instead of 137 to 558. `tp-bench callers
/// --callers 1 --parked 0 --pin --wake-us 250`; RESULTS, "Slow wake-ups".
pub(super) const SLOW_WAKES: Duration = Duration::from_micros(900);

/// After such a try, this many polls in a row must pay for the next try to come as soon. Chosen: fewer may be a burst that came anyway.
pub(super) const PAID_IN_A_ROW: u32 = 8;

/// The most sleeps up to [`SLOW_WAKES`] before such a try is repeated. Chosen: it costs a 4096th of a core then.
pub(super) const SLOW_WAKES_MOST: u32 = 4096;

/// Polls of the connection in one poll of a task. They take less time than a runtime takes to come back to the task. Measured: with 4 an
/// empty echo over shm takes 1.07 times as long, with 64 the same.
pub(super) const POLLS_PER_WAKE: u32 = 16;

/// Polls between two reads of the clock. Chosen between 8 and 128, which measure the same.
pub(super) const POLLS_PER_CLOCK: u32 = 32;

/// Operations, or messages at once, above which polls that are system calls stop: each would find one message, where a
/// sleeper is woken for many. Measured: 64 calls in flight over tcp, 7.7 µs each by polling, 1.7 asleep; command not kept.
pub(super) const COSTLY_POLL_MESSAGES: u32 = 4;

/// Operations above which one task polls for all, if a poll is no system call: one poll by each of them would cost more than it finds.
/// Measured: 64 calls in flight over shm, 1.17 instead of 1.26 µs each; command not kept.
pub(super) const SOLE_POLLER_WAITERS: usize = 4;

// Coalescing: the more are under way, the more of them share a read or a write.

/// Operations above which a read waits for several messages, since each poll finds less. Chosen between 4 and 64, which measure the same.
pub(super) const RECEIVE_BATCH_WAITERS: usize = 16;

/// Bytes that are worth a read then: some eight small messages. Measured with the next three: 64 calls in flight over shm took 0.73 µs each
/// with waiting, else 0.89 to 0.93; larger bounds changed nothing. `tp-bench rpc --size 0 --pin --seconds 0.25`.
pub(in crate::pipe) const RECEIVE_BATCH: usize = 256;

/// Bytes of a read that was worth waiting for.
pub(in crate::pipe) const RECEIVE_BATCH_WORTH: usize = 96;

/// Polls that find something, but not enough, before it is read all the same: a few microseconds. More changed nothing.
pub(in crate::pipe) const RECEIVE_BATCH_POLLS: u32 = 128;

/// Reads without waiting, at most, after waits in vain.
pub(in crate::pipe) const RECEIVE_BATCH_PAUSE: u32 = 256;

/// The most small messages that leave together if a write is no system call: the peer works while more are written. Measured with the next
/// one: 64 calls in flight over shm, 0.21 instead of 0.85 writes each, where each call is made by its first poll; command not kept.
pub(in crate::pipe) const SEND_BATCH: u32 = 8;

/// The same if a write is a system call. Measured with the next one: 64 calls of 4 KiB in flight over tcp, 0.35 writes each if a message
/// behind 16 KiB is written at once, 0.16 if it waits, too. `tp-bench rpc --case pipeline --size 4KiB --transport tcp --pin`.
pub(in crate::pipe) const SEND_BATCH_COSTLY: u32 = 32;

/// The most bytes of such messages in the protocol's queue.
pub(in crate::pipe) const SEND_BATCH_BYTES: u64 = 128 << 10;

/// From this many operations under way, a further message is likely not to be alone: it waits for others, at the price of a poll of the
/// pipe's own task. Below, each message leaves at once, on its writer's task. Measured: 64 empty calls in flight over shm take 0.97 µs each
/// with 8, 0.87 with 6, 0.74 with 4, 3 or 2; over tcp 0.99, 0.98 and 0.98. `tp-bench rpc --case pipeline --size 0 --pin`; RESULTS, "Tuned
/// numbers".
pub(in crate::pipe) const SEND_BATCH_FROM: usize = 4;

/// From this many bytes in the send buffer, a message waits in the protocol's queue, where it is counted and can be cancelled. Chosen
/// between 4 and 64 KiB, which measure the same.
pub(in crate::pipe) const SEND_BACKLOG: u64 = 16 << 10;

/// How long a lane's answer waits for the next message, or little longer. Chosen between 250 µs and 4 ms, which measure the same: a
/// runtime's clock knows no shorter time.
pub(in crate::pipe) const DELAYED_ACK: Duration = Duration::from_millis(1);

// Passes of sending and receiving. Each ends after a mebibyte or two, so that nothing else waits for a tensor.

/// After a step of a lane's work that took this long, the driver hands the rest to another thread. The step's memory was not there (mapped
/// from a file, swapped out), and each further step would hold up everybody else. Chosen: some fifty steps' usual time.
pub(in crate::pipe) const SLOW_STEP: Duration = Duration::from_millis(1);

/// Steps of lanes' work in a row, before what waits is sent. Chosen between 1 and 16, which measure the same: a mebibyte.
pub(in crate::pipe) const STEPS_IN_A_ROW: usize = 4;

/// Passes of sending and receiving in a round. Chosen between 1 and 8, which measure the same: a mebibyte or two each.
pub(in crate::pipe) const PASSES: usize = 2;

/// Full writes in a row, before what has come in is read. Chosen between 1 and 8, which measure the same: a mebibyte. A peer that reads as
/// fast as this side writes never fills the connection: without a bound, its answers would wait until everything is written.
pub(in crate::pipe) const WRITES_IN_A_ROW: usize = 2;

/// Reads of bulk bytes in a row. Chosen between 4 and 64, which measure the same: a mebibyte. The same for a peer that writes as fast as
/// this side reads.
pub(in crate::pipe) const READS_IN_A_ROW: usize = 16;

/// Messages taken out of one read before they are delivered: their answers leave together. Measured, with answers that leave in one write:
/// 64 calls in flight over tcp, 15 to 18 instead of 43 µs each; command not kept.
pub(in crate::pipe) const MESSAGES_IN_A_ROW: usize = 32;

/// The work for a pipe before sockets and timers are polled: bytes moved, in both directions together. Chosen between 256 KiB and 4 MiB,
/// which measure the same: polling sockets and timers is a system call, some half a microsecond.
pub(in crate::pipe) const PIPE_SLICE: u64 = 1 << 20;

/// How often a thread does not drive a pipe that it has yielded: after that it drives a slice, although it has not polled its sockets.
/// Measured by `fairness::a_thousand_calls_in_flight_come_before_another_clients_call_a_few_times_at_most`, where each call has a task of
/// its own: 64 are too few in 7 of 16 runs, 1024 in none of 14.
pub(in crate::pipe) const LEFT_ALONE: u32 = 1024;

/// Bytes of a slice that a read counts as. Chosen between 4 and 64 KiB, which measure the same: 64 are a slice.
pub(in crate::pipe) const WORK_OF_READ: u64 = PIPE_SLICE / 64;

/// Bytes of a slice that a message for the handler counts as. Chosen between 1 and 16 KiB, which measure the same: 256 are a slice, of 5 ms
/// if each takes the 20 µs that a handler may take on the thread that drives.
pub(in crate::pipe) const WORK_OF_MESSAGE: u64 = PIPE_SLICE / MESSAGES_OF_SLICE as u64;

/// Messages that one thread gives to the handler before it lets others come first: a slice, also while another thread reads. Chosen.
pub(in crate::pipe) const MESSAGES_OF_SLICE: u32 = 256;

// Sizes of writes and reads.

/// Bytes gathered for one write. Measured: with 128 KiB echoes of 1 MiB over tcp take 1.1 times as long, with 2 MiB 1.4 times. A control
/// frame cannot overtake gathered bytes.
pub(in crate::pipe) const WRITE_BYTES: u64 = 512 << 10;

/// Pieces in one write. Chosen.
pub(in crate::pipe) const WRITE_PIECES: usize = 64;

/// Up to this many bytes, a part is copied next to its frame's header: cheaper than one more piece. Measured: with 64 the same, with 4 KiB
/// 64 calls of 4 KiB over tcp take 1.6 times as long.
pub(in crate::pipe) const COPIED_INTO_FRAME: u64 = 512;

/// The receive buffer of a pipe that receives little, in bytes; every pipe begins with it. Chosen between 1 and 16 KiB, which measure the
/// same: a page.
pub(in crate::pipe) const RECEIVE_BUFFER_IDLE: usize = 4 << 10;

/// How long a pipe keeps a larger receive buffer that no read has needed. Chosen: as long as other memory that is kept for reuse.
pub(in crate::pipe) const RECEIVE_BUFFER_KEPT: Duration = Duration::from_secs(10);

/// The usual receive buffer, in bytes. Measured: with 16 KiB 64 calls of 4 KiB over tcp take 1.04 times as long, with 256 KiB 0.96. For one
/// large head it grows up to the limit on metadata, with the bytes that have come in.
pub(in crate::pipe) const RECEIVE_BUFFER: usize = 64 << 10;

/// The receive buffer while bulk data flows, and for the first read behind it, in bytes: small, so that bulk bytes are not copied through
/// it. Chosen between 512 bytes and 8 KiB, which measure the same.
pub(in crate::pipe) const RECEIVE_BUFFER_BULK: usize = 2 << 10;

/// Up to this many bytes, a part that is here whole is copied at once, under the lock of `shared`. Chosen between 4 and 64 KiB, which
/// measure the same.
pub(in crate::pipe) const COPIED_AT_ONCE: u64 = 16 << 10;

/// Bytes that a part must have left to be read directly into its place. Chosen between 1 and 16 KiB, which measure the same.
pub(in crate::pipe) const DIRECT_FROM: u64 = 4 << 10;

/// Bulk bytes of one read. Measured: hand-written tokio takes 38 ms for 256 MiB in reads of 64 KiB, over 80 ms in reads of 256
/// KiB; command not kept. The larger ones leave the caches before they are copied. Where other work keeps both cores busy it makes
/// no difference.
pub(in crate::pipe) const READ_BULK: usize = 64 << 10;

/// Reads of the connection for one of the clock, while polling. Chosen between 4 and 64, which measure the same: the clock costs more than
/// a small frame.
pub(in crate::pipe) const READS_PER_CLOCK: u32 = 16;

/// If bytes come in further apart than this, the protocol hears of each read, not only of whole frames and chunks. Chosen.
pub(in crate::pipe) const SIGN_OF_LIFE: Duration = Duration::from_millis(100);

/// How long a connection may take to say goodbye (the `close_notify` of TLS) after its pipe has ended. Chosen: a round trip over any
/// network, and what a user who closes still waits for.
pub(in crate::pipe) const GOODBYE: Duration = Duration::from_secs(1);

// Bounds of what a peer, or a slow handler, can make this side keep.

/// At this many queued calls of the handler the pipe stops reading, until half of them are gone. Chosen.
pub(in crate::pipe) const UNDELIVERED: usize = 4096;

/// The same in bytes of messages and reasons. Chosen.
pub(in crate::pipe) const UNDELIVERED_BYTES: usize = 16 << 20;

/// Messages that the handler is given for each time the lock is taken. Chosen between 2 and 32, which measure the same: what each costs
/// beside its handler's work is shared.
pub(in crate::pipe) const DELIVERY_BATCH: usize = 8;

/// Bytes of a message whose dropped read still lets it come in, and keeps what has come; of a larger one, the writer is told to stop.
/// Chosen.
pub(in crate::pipe) const DRAIN_UP_TO: u64 = 64 << 10;

/// Up to this many bytes, a part in memory of somebody else's is copied into its reader's place on the thread that drives. Chosen between
/// 64 KiB and 1 MiB, which measure the same: some twenty microseconds.
pub(in crate::pipe) const COPIED_ON_THE_SPOT: usize = 256 << 10;

/// Bytes that the peer of a new pipe may send ahead. Chosen between 64 KiB and 1 MiB, which measure the same: 3000 pipes have 750 MiB then.
pub(in crate::pipe) const CREDIT_START: u64 = 256 << 10;

/// How long a pipe keeps credit that it has earned and does not use. Chosen.
pub(in crate::pipe) const CREDIT_KEPT: Duration = Duration::from_secs(10);

/// Bytes that all pipes of a context may announce at once. Chosen: a quarter of what a process has addresses for.
pub(in crate::pipe) const ADDRESSES: u64 = 32 << 40;

/// A message up to this many bytes may always wait for something else, even if others take all that waiting messages may take. Chosen.
pub(in crate::pipe) const WAITING_ANYWAY: u64 = 64 << 10;

// The heartbeat: a thread that speaks for pipes whose runtime is blocked.

/// Checks within a bound of silence. Chosen.
pub(in crate::pipe) const HEARTBEAT_CHECKS: u32 = 8;

/// Checks without a byte to the peer after which a pipe is silent. Chosen.
pub(in crate::pipe) const HEARTBEAT_SILENT: u32 = 5;

/// A poll of a handler that took so long is logged. Chosen.
pub(in crate::pipe) const POLL_KEPT: Duration = Duration::from_secs(1);

/// One that keeps its thread for so long is logged while it lasts. Chosen.
pub(in crate::pipe) const HEARTBEAT_KEPT: Duration = Duration::from_secs(5);

/// The bound on silence if this side has none, or a longer one: the peer may have the default. Chosen.
pub(in crate::pipe) const HEARTBEAT_LONGEST: Duration = Duration::from_secs(10);

/// The shortest bound, for checks to be cheap. Chosen.
pub(in crate::pipe) const HEARTBEAT_SHORTEST: Duration = Duration::from_millis(80);
