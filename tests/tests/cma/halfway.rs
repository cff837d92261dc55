//! One end stops, dies or gives up while a tensor is being read from its writer's memory. A completed read has all bytes; any other
//! ends in a typed error; and the memory of both ends comes back.

use std::sync::Arc;

use tensorpipe::channels::{
    BasicChannel, Channel, ChannelFault, CmaChannel, Lane, LaneIo, OpId, Want,
};
use tensorpipe::{Buffer, Context, Error, Message};
use tensorpipe_tests::{Child, Double, Says, say};

use super::scene::{
    Peer, Takes, alone, check, context, eventually, runtime, soon, with_channels, zeros,
};

/// Many pieces.
const LEN: usize = 32 << 20;

/// As many as one thread reads.
const ALONE: usize = 3 << 20;

const HALF_READ: (&str, &str) = ("TENSORPIPE_STOP_AT", "memory-half-read");

/// A child that listens, reads one message, and says what became of it.
pub(crate) fn play() {
    runtime().block_on(async {
        let context = context("reader");
        let listener = context.listen(["tcp://127.0.0.1:0"]).await.unwrap();
        say("listens", listener.url());
        let pipe = listener.accept().await.unwrap();
        let ended = match pipe.read().await {
            Ok(message) => {
                let all = message.tensors[0].tensor.as_bytes().unwrap();
                format!("{} zeros", all.iter().filter(|byte| **byte == 0).count())
            }
            Err(Error::Lost { .. }) => "lost".to_owned(),
            Err(Error::Reset { .. }) => "reset".to_owned(),
            Err(error) => format!("{error:?}"),
        };
        say("ended", ended);
        eventually("memory back", || pipe.pool().stats().outstanding_bytes == 0).await;
        say("back", "");
        let _ = pipe.ended().await;
    });
}

/// A reader that stops in the middle, and its address.
fn reader() -> (Child, String) {
    let child = Child::start("reader", &[HALF_READ]);
    let url = child.hear("listens");
    (child, url)
}

async fn connected(context: &Context, url: &str) -> tensorpipe::Pipe {
    soon("a pipe", context.connect(url)).await.unwrap()
}

async fn stopped(child: Child) -> Child {
    let wait = move || {
        assert_eq!(child.hear("stopped"), "memory-half-read");
        child
    };
    tokio::task::spawn_blocking(wait).await.unwrap()
}

async fn heard(child: Child, key: &'static str) -> (Child, String) {
    let wait = move || {
        let value = child.hear(key);
        (child, value)
    };
    tokio::task::spawn_blocking(wait).await.unwrap()
}

#[test]
fn a_reader_that_pauses_reads_on() {
    alone(async || {
        let context = context("writer");
        let (child, url) = reader();
        let pipe = connected(&context, &url).await;
        let mut write = pipe.write(Message::new("m").tensor(zeros(LEN)));
        let child = stopped(child).await;
        let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut write).await;
        assert!(early.is_err(), "{early:?}");
        child.resume();
        soon("a write", write).await.unwrap();
        let (_, ended) = heard(child, "ended").await;
        assert_eq!(ended, format!("{LEN} zeros"));
    });
}

#[test]
fn memory_that_its_writer_took_back_is_not_delivered() {
    alone(async || {
        let context = context("writer");
        let (child, url) = reader();
        let pipe = connected(&context, &url).await;
        let mut tensor = zeros(LEN);
        let at = tensor.as_bytes().unwrap().as_ptr();
        let write = pipe.write(Message::new("m").tensor(tensor.clone()));
        let child = stopped(child).await;
        write.cancel();
        eventually("the memory is mine again", || {
            tensor.make_mut::<u8>().is_ok() && tensor.as_bytes().unwrap().as_ptr() == at
        })
        .await;
        tensor.make_mut::<u8>().unwrap().fill(0xee);
        child.resume();
        let (child, ended) = heard(child, "ended").await;
        assert_eq!(ended, "reset");
        heard(child, "back").await;
    });
}

/// A writer's, which takes an export back, and says nothing, when it is given the next tensor. It has a copy of the first one for whoever
/// asks for bytes.
struct FickleLane {
    honest: Box<dyn Lane>,
    shown: Option<(OpId, Buffer)>,
}

impl Says for FickleLane {
    fn send(&mut self, op: OpId, source: Buffer, io: &mut LaneIo<'_>) {
        match &self.shown {
            Some((shown, _)) => self.honest.cancel(*shown, io),
            None => {
                let copy = Buffer::copy_from_slice(source.as_bytes().unwrap());
                self.shown = Some((op, copy));
                self.honest.send(op, source, io);
            }
        }
    }

    fn recv(&mut self, _: OpId, _: Want, _: &mut LaneIo<'_>) {
        unreachable!("it is sent nothing");
    }

    fn control(&mut self, op: OpId, _: &[u8], io: &mut LaneIo<'_>) -> Result<(), ChannelFault> {
        let (shown, copy) = self.shown.take().unwrap();
        assert_eq!(op, shown);
        io.stream(op, copy);
        Ok(())
    }
}

/// No RESET says so: only the second look at the export does. Read by whoever drives the pipe, and by two threads.
#[test]
fn what_was_read_is_taken_only_while_its_export_stands() {
    alone(async || {
        for len in [ALONE, LEN] {
            let fickle = Double::liar(CmaChannel::new(), |link| FickleLane {
                honest: CmaChannel::new().open(link).unwrap(),
                shown: None,
            });
            let channels = vec![fickle.channel(), Arc::new(BasicChannel::new())];
            let context = with_channels("writer", channels);
            let (child, url) = reader();
            let pipe = connected(&context, &url).await;
            let mut tensor = zeros(len);
            let write = pipe.write(Message::new("m").tensor(tensor.clone()));
            let child = stopped(child).await;
            pipe.send(Message::new("the next").tensor(zeros(len)))
                .unwrap();
            let at = tensor.as_bytes().unwrap().as_ptr();
            eventually("the memory is mine again", || {
                tensor.make_mut::<u8>().is_ok() && tensor.as_bytes().unwrap().as_ptr() == at
            })
            .await;
            tensor.make_mut::<u8>().unwrap().fill(0xee);
            child.resume();
            let (_child, ended) = heard(child, "ended").await;
            assert_eq!(ended, format!("{len} zeros"));
            soon("a write", write).await.unwrap();
        }
    });
}

#[test]
fn a_second_thread_reads_what_is_large() {
    if std::thread::available_parallelism().unwrap().get() < 2 {
        return println!("skipped: there is one processor");
    }
    alone(async || {
        let context = context("writer");
        let mut helped = 0;
        // Late: a second thread has begun by then.
        let (last, late) = ("memory-half-read:12", "memory-half-read:100");
        for (len, at) in [(ALONE, last)].into_iter().chain([(LEN, late); 5]) {
            let child = Child::start("reader", &[("TENSORPIPE_STOP_AT", at)]);
            let url = child.hear("listens");
            let pipe = connected(&context, &url).await;
            let _write = pipe.write(Message::new("m").tensor(zeros(len)));
            let child = stopped(child).await;
            let has = threads(child.id()).contains(&"tensorpipe-cma".to_owned());
            assert!(!has || len == LEN, "{len} bytes do not pay");
            helped += u32::from(has);
        }
        // On a busy machine it may not have.
        assert!(helped >= 3, "{helped} of 5 times");
    });
}

/// The names of a process's threads.
fn threads(process: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
    let name = |task: std::io::Result<std::fs::DirEntry>| {
        let name = std::fs::read_to_string(task.unwrap().path().join("comm"));
        name.unwrap().trim_end().to_owned()
    };
    tasks.map(name).collect()
}

#[test]
fn a_killed_reader_lets_go_of_the_writers_memory() {
    alone(async || {
        let context = context("writer");
        let (child, url) = reader();
        let pipe = connected(&context, &url).await;
        let tensor = zeros(LEN);
        let memory = Arc::downgrade(tensor.buffer().memory());
        let write = pipe.write(Message::new("m").tensor(tensor));
        let mut child = stopped(child).await;
        assert!(memory.strong_count() > 0);
        child.kill();
        let error = soon("the write", write).await.unwrap_err();
        assert!(matches!(error, Error::Lost { .. }), "{error:?}");
        eventually("memory back", || memory.strong_count() == 0).await;
        // Others are served as ever.
        let peer = Peer::start(&context, &[]).await;
        peer.takes(3 << 20, 1).await;
    });
}

#[test]
fn a_writer_killed_in_the_middle_is_a_typed_error_and_memory_comes_back() {
    alone(async || {
        let (child, url) = reader();
        let context = context("parent");
        let mut writer = Peer::start(&context, &[("TEST_OTHER", &url)]).await;
        writer
            .pipe
            .send(Message::new(format!("to another {LEN}")))
            .unwrap();
        let child = stopped(child).await;
        // It is waited for, too: its number is free.
        writer.child.kill();
        child.resume();
        let (child, ended) = heard(child, "ended").await;
        assert_eq!(ended, "lost");
        heard(child, "back").await;
    });
}

#[test]
fn a_dropped_read_gives_the_memory_back_and_the_pipe_goes_on() {
    alone(async || {
        let context = context("parent");
        let peer = Peer::start(&context, &[]).await;
        for _ in 0..5 {
            let ask = Message::new(format!("give {}", 8 * LEN));
            peer.pipe.send(ask).unwrap();
            let incoming = soon("a descriptor", peer.pipe.read_descriptor())
                .await
                .unwrap();
            let before = peer.pipe.stats().bytes_in;
            let mut read = Box::pin(incoming.read());
            let arrived = async {
                // Until the export has come: then it is being read.
                while peer.pipe.stats().bytes_in == before {
                    tokio::select! {
                        // On a busy machine this task may sleep for longer than that takes.
                        _ = &mut read => return,
                        () = tokio::time::sleep(std::time::Duration::from_micros(50)) => {}
                    }
                }
            };
            soon("an export", arrived).await;
            drop(read);
            eventually("memory back", || {
                context.pool().stats().outstanding_bytes == 0
            })
            .await;
        }
        check(&peer.gives(3 << 20, 4).await, 4);
        assert_eq!(peer.takes(3 << 20, 5).await, 3 << 20);
    });
}
