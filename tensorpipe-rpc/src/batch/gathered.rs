//! One batch at its handler: joins the tensors of all callers, and cuts the result into a reply for each.

use std::ops::Range;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpipe::{Tensor, device::DevicePool};

use super::rows::{Cut, Rows};
use crate::codec::Reply;
use crate::context::CallContext;
use crate::header::FailureCode;

/// The callers of one batch, and their rows. For generated code.
#[derive(Debug)]
pub struct Gathered {
    method: &'static str,
    context: CallContext,
    /// The rows of each caller, in order.
    ranges: Vec<Range<u64>>,
}

impl Gathered {
    /// `rows`: the number of rows of each caller.
    pub(super) fn new(
        method: &'static str,
        context: CallContext,
        rows: impl IntoIterator<Item = u64>,
    ) -> Self {
        let mut end = 0u64;
        let ranges = rows.into_iter().map(|rows| {
            let begin = end;
            // Saturates: a single call may claim any number of empty rows, although several calls together have few.
            end = end.saturating_add(rows);
            begin..end
        });
        Self {
            method,
            context,
            ranges: ranges.collect(),
        }
    }

    /// The context of the whole batch.
    pub fn context(&self) -> &CallContext {
        &self.context
    }

    /// The replies to all callers of a method that returned a `T`.
    pub fn value<T: Rows + Serialize + DeserializeOwned>(&self, value: T) -> Vec<Reply> {
        let total = self.ranges.last().map_or(0, |last| last.end);
        let mut replies = Vec::with_capacity(self.ranges.len());
        for range in &self.ranges {
            let mut cut = Cut::new(range.clone(), total);
            let part = value.cut(&mut cut);
            if let Some(wrong) = cut.into_wrong() {
                let text = format!(
                    "`{}` was given a batch of {total} rows and returned {wrong}; return a row for each",
                    self.method
                );
                return self.all(&Reply::failed(FailureCode::BadReply, text));
            }
            replies.push(Reply::value(part));
        }
        replies
    }

    /// The replies to all callers of a method that returned a `Result`. Every caller gets the error.
    pub fn result<T, E>(&self, result: Result<T, E>) -> Vec<Reply>
    where
        T: Rows + Serialize + DeserializeOwned,
        E: Serialize + DeserializeOwned,
    {
        match result {
            Ok(value) => self.value(value),
            Err(error) => self.all(&Reply::error(&error)),
        }
    }

    pub(super) fn all(&self, reply: &Reply) -> Vec<Reply> {
        vec![reply.clone(); self.ranges.len()]
    }
}

/// Joins the rows of all callers, in memory of their device's `pool`, with one copy of each. The rows of a single caller are passed
/// on as they are.
pub(super) async fn concatenate(
    pool: &DevicePool,
    mut parts: Vec<Tensor>,
) -> Result<Tensor, String> {
    let first = parts.first().ok_or("a batch without calls")?;
    if parts.len() == 1 {
        return Ok(parts.swap_remove(0));
    }
    let (dtype, mut shape) = (first.dtype(), first.shape().to_vec());
    let rows = parts.iter().filter_map(|part| part.shape().first());
    let rows = rows.sum();
    if let Some(first) = shape.first_mut() {
        *first = rows;
    }
    let parts = parts.into_iter().map(Tensor::into_buffer).collect();
    let gathered = pool.gather(parts).await;
    let gathered = gathered.map_err(|error| error.to_string())?;
    Tensor::from_buffer(gathered, dtype, shape).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use tensorpipe::{Context, Device};

    use super::*;

    #[tokio::test]
    async fn rows_of_all_stand_behind_each_other_and_one_part_is_not_copied() {
        let pool = Context::new().allocator(Device::CPU).unwrap();
        let part = |from: u16, rows: u16| {
            Tensor::from_vec((from..from + 3 * rows).collect(), [rows.into(), 3]).unwrap()
        };
        let parts = vec![part(0, 2), part(0, 0), part(6, 1)];
        let all = concatenate(&pool, parts).await.unwrap();
        assert_eq!((all.shape(), all.byte_len()), (&[3, 3][..], 18));
        let numbers: Vec<u16> = (0..9).collect();
        assert_eq!(all.as_slice::<u16>().unwrap(), numbers);

        let alone = part(4, 2);
        let same = concatenate(&pool, vec![alone.clone()]).await.unwrap();
        let (memory, own) = (same.buffer().memory(), alone.buffer().memory());
        assert!(std::sync::Arc::ptr_eq(memory, own));
        assert!(concatenate(&pool, Vec::new()).await.is_err());
    }
}
