//! The task of one further connection: both directions at once, until the pipe or the connection ends.
//!
//! The writer pulls a chunk once the system has taken the one before, so at most one chunk waits here. The reader puts each chunk in its
//! place, and discards chunks of tensors that nobody waits for any more.

use std::future::poll_fn;
use std::io::{self, IoSlice};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::sync::watch;

use super::arriving::Claimed;
use super::frame::{ChunkHead, Frame, HEADER_LEN};
use super::line::Line;
use super::sending::Chunk;
use super::stripes::Stripes;
use super::{ChannelFault, Connection, NAME};

/// Bytes that one read discards.
const SINK: usize = 16 << 10;

/// How often late chunks are looked for while something is unconfirmed.
const TICK: Duration = Duration::from_millis(10);

/// If the peer is gone, the pipe's connection reports a better reason, and has this long to do so.
const GRACE: Duration = Duration::from_millis(200);

/// How a connection ended.
enum End {
    Broken(String),
    Nonsense(ChannelFault),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Broken(match error.kind() {
            io::ErrorKind::UnexpectedEof => "it was closed".to_owned(),
            _ => error.to_string(),
        })
    }
}

impl From<ChannelFault> for End {
    fn from(fault: ChannelFault) -> Self {
        Self::Nonsense(fault)
    }
}

/// Moves chunks over connection number `number` until the connection ends, or the pipe does, which `over` reports.
pub(super) async fn run(
    connection: Box<dyn Connection>,
    number: usize,
    stripes: Arc<Stripes>,
    mut over: watch::Receiver<()>,
) {
    let ends = connection.endpoints();
    let line = Line::new();
    // At most 16.
    let by = number as u8;
    stripes.opened();
    let (reader, writer) = tokio::io::split(connection);
    let end = tokio::select! {
        biased;
        _ = over.changed() => return,
        Err(end) = read(reader, &line, &stripes, by) => end,
        Err(end) = write(writer, &line, &stripes, number) => end,
        silence = watch(&line, &stripes) => End::Broken(format!("no chunk was confirmed for {silence:?}")),
        else => return,
    };
    match end {
        End::Nonsense(fault) => stripes.handle.fault(NAME, fault),
        End::Broken(reason) => {
            stripes.closed(&line);
            while stripes.torn().is_some() {
                if tokio::time::timeout(GRACE, over.changed()).await.is_ok() {
                    return;
                }
                if stripes.torn() == Some(false) {
                    let reason =
                        format!("connection {number} of channel {NAME} ({ends}): {reason}");
                    return stripes.handle.lost(&reason);
                }
            }
            tracing::debug!(%ends, %reason, "a connection of channel mpt has ended; the others carry on");
        }
    }
}

type Never = std::convert::Infallible;

/// Ends when the peer has confirmed nothing for too long. Before that, late chunks are given to the other connections as well.
async fn watch(line: &Line, stripes: &Stripes) -> Duration {
    loop {
        line.wait_for_unconfirmed().await;
        tokio::time::sleep(TICK).await;
        if let Some(silence) = line.silence() {
            return silence;
        }
        stripes.send_late_again(line);
    }
}

async fn write(
    mut writer: WriteHalf<Box<dyn Connection>>,
    line: &Line,
    stripes: &Stripes,
    number: usize,
) -> Result<Never, End> {
    loop {
        let mut work = pin!(stripes.work.notified());
        // From here on, this waiter is notified of new work.
        work.as_mut().enable();
        let chunks = line.take_to_confirm();
        if chunks > 0 {
            writer.write_all(&Frame::Taken(chunks).encode()).await?;
        }
        let next = (!line.is_late()).then(|| stripes.pull());
        if let Some(chunk) = next.flatten() {
            line.sends(chunk.id);
            write_chunk(&mut writer, &chunk).await?;
            stripes.count_sent(number);
            drop(chunk);
            // This task reads as well: let it.
            tokio::task::yield_now().await;
            continue;
        }
        writer.flush().await?;
        tokio::select! {
            biased;
            () = work => {}
            () = line.wait_for_news() => {}
        }
    }
}

/// Header and bytes in one write where the connection can.
async fn write_chunk(writer: &mut WriteHalf<Box<dyn Connection>>, chunk: &Chunk) -> io::Result<()> {
    // Its channel serves only main memory.
    let mut bytes = chunk.bytes.as_bytes().unwrap_or_default();
    let header = Frame::Chunk(ChunkHead {
        op: chunk.id.op,
        offset: chunk.id.offset,
        len: bytes.len() as u32,
    });
    let header = header.encode();
    let mut header = &header[..];
    while !header.is_empty() || !bytes.is_empty() {
        let slices = [IoSlice::new(header), IoSlice::new(bytes)];
        let from = usize::from(header.is_empty());
        let written = writer.write_vectored(&slices[from..]).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        let of_header = written.min(header.len());
        header = &header[of_header..];
        bytes = &bytes[written - of_header..];
    }
    Ok(())
}

async fn read(
    mut reader: ReadHalf<Box<dyn Connection>>,
    line: &Line,
    stripes: &Stripes,
    by: u8,
) -> Result<Never, End> {
    loop {
        let mut header = [0; HEADER_LEN];
        reader.read_exact(&mut header).await?;
        match Frame::decode(&header)? {
            Frame::Taken(chunks) => {
                line.confirmed(chunks)?;
                stripes.confirmed(line);
            }
            Frame::Chunk(chunk) => {
                read_chunk(&mut reader, &chunk, stripes, by).await?;
                line.add_to_confirm();
                // This task writes as well: let it.
                tokio::task::yield_now().await;
            }
        }
    }
}

async fn read_chunk(
    reader: &mut ReadHalf<Box<dyn Connection>>,
    chunk: &ChunkHead,
    stripes: &Stripes,
    by: u8,
) -> Result<(), End> {
    // No tensor of that id waits here any more. It did once: the writer sends nothing before this side has sent GO.
    let Some(arriving) = stripes.arriving(chunk.op) else {
        return Ok(sink(reader, chunk.len as usize).await?);
    };
    let Some(Claimed { mut place, cost }) = arriving.claim(chunk, by)? else {
        return Ok(sink(reader, chunk.len as usize).await?);
    };
    stripes.count(chunk.op, cost);
    while !place.is_empty() {
        let filled = poll_fn(|cx| {
            let reader = Pin::new(&mut *reader);
            arriving.poll_fill(cx, reader, place.clone(), by)
        });
        match filled.await? {
            Some(len) => place.start += len,
            None => return Ok(sink(reader, place.len()).await?),
        }
    }
    if let Some(memory) = arriving.filled(chunk.offset, by) {
        stripes.arrived(chunk.op, memory);
    }
    Ok(())
}

/// Throws `len` bytes away.
async fn sink(reader: &mut ReadHalf<Box<dyn Connection>>, mut len: usize) -> io::Result<()> {
    let mut piece = vec![0; SINK.min(len)];
    while len > 0 {
        let at_once = piece.len().min(len);
        match reader.read(&mut piece[..at_once]).await? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => len -= read,
        }
    }
    Ok(())
}
