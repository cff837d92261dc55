//! Types that arguments and results can have.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tensorpipe::{Context, DType, Element, Tensor};
use tensorpipe_rpc::{CallError, tensor_service};

use super::lab::{Bench, LabClient, LabService, serve, tcp, tensor};

#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Layer {
    Dense {
        weight: Tensor,
        bias: Option<Tensor>,
    },
    Stack(Vec<Self>),
    Pair([Tensor; 2], u8),
    Nothing,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Reason {
    pub(crate) text: String,
    pub(crate) evidence: Tensor,
}

/// What there is to compare.
trait Told {
    fn told(&self, out: &mut Vec<(DType, Vec<u64>, Vec<u8>)>);
}

impl Told for Tensor {
    fn told(&self, out: &mut Vec<(DType, Vec<u64>, Vec<u8>)>) {
        let bytes = self.as_bytes().unwrap().to_vec();
        out.push((self.dtype(), self.shape().to_vec(), bytes));
    }
}

impl<T: Told> Told for Vec<T> {
    fn told(&self, out: &mut Vec<(DType, Vec<u64>, Vec<u8>)>) {
        out.push((DType::U8, vec![self.len() as u64], Vec::new()));
        self.iter().for_each(|one| one.told(out));
    }
}

impl<T: Told> Told for Option<T> {
    fn told(&self, out: &mut Vec<(DType, Vec<u64>, Vec<u8>)>) {
        out.push((DType::U8, vec![u64::from(self.is_some())], Vec::new()));
        self.iter().for_each(|one| one.told(out));
    }
}

impl Told for Layer {
    fn told(&self, out: &mut Vec<(DType, Vec<u64>, Vec<u8>)>) {
        match self {
            Self::Dense { weight, bias } => {
                weight.told(out);
                bias.told(out);
            }
            Self::Stack(layers) => layers.told(out),
            Self::Pair(pair, _) => pair.iter().for_each(|one| one.told(out)),
            Self::Nothing => {}
        }
    }
}

#[track_caller]
fn same<T: Told>(a: &T, b: &T) {
    let (mut left, mut right) = (Vec::new(), Vec::new());
    a.told(&mut left);
    b.told(&mut right);
    assert!(left == right, "they differ");
}

#[tensor_service]
trait Values {
    async fn nothing(&self) -> ();
    async fn strings(&self, a: String, b: String) -> String;
    async fn bytes(&self, bytes: Vec<u8>) -> Vec<u8>;
    async fn maybe(&self, tensor: Option<Tensor>) -> Option<Tensor>;
    async fn many(&self, tensors: Vec<Tensor>) -> Vec<Tensor>;
    async fn layer(&self, layer: Layer) -> Layer;
    async fn named(&self, tensors: BTreeMap<String, (u8, Tensor)>) -> Vec<Tensor>;
    async fn check(&self, fine: bool) -> Result<(), Reason>;
    async fn numbers(
        &self,
        a: i64,
        b: f64,
        c: bool,
        d: Option<char>,
    ) -> (i64, f64, bool, Option<char>);
}

struct Mirror;

impl Values for Mirror {
    async fn nothing(&self) {}

    async fn strings(&self, a: String, b: String) -> String {
        a + &b
    }

    async fn bytes(&self, bytes: Vec<u8>) -> Vec<u8> {
        bytes
    }

    async fn maybe(&self, tensor: Option<Tensor>) -> Option<Tensor> {
        tensor
    }

    async fn many(&self, tensors: Vec<Tensor>) -> Vec<Tensor> {
        tensors
    }

    async fn layer(&self, layer: Layer) -> Layer {
        layer
    }

    async fn named(&self, tensors: BTreeMap<String, (u8, Tensor)>) -> Vec<Tensor> {
        tensors.into_values().map(|(_, tensor)| tensor).collect()
    }

    async fn check(&self, fine: bool) -> Result<(), Reason> {
        if fine {
            return Ok(());
        }
        Err(Reason {
            text: "not fine".to_owned(),
            evidence: tensor(200_000, 9),
        })
    }

    async fn numbers(
        &self,
        a: i64,
        b: f64,
        c: bool,
        d: Option<char>,
    ) -> (i64, f64, bool, Option<char>) {
        (a, b, c, d)
    }
}

async fn over_each(test: impl AsyncFn(ValuesClient)) {
    for context in [tcp, Context::builder] {
        let context = context().build().unwrap();
        let server = serve(&context, ValuesService::new(Mirror)).await;
        let client = ValuesClient::connect_with(&context, server.url())
            .await
            .unwrap();
        test(client).await;
    }
}

#[tokio::test]
async fn small_values_owned_and_borrowed() {
    over_each(async |client| {
        client.nothing().await.unwrap();
        let owned = "b".to_owned();
        assert_eq!(client.strings("a", &owned).await.unwrap(), "ab");
        assert_eq!(client.strings(owned, "").await.unwrap(), "b");
        let bytes = vec![1, 2, 3];
        assert_eq!(client.bytes(&bytes).await.unwrap(), bytes);
        assert_eq!(client.bytes(bytes.clone()).await.unwrap(), bytes);
        let numbers = (i64::MIN, f64::MIN_POSITIVE, true, Some('ü'));
        let back = client.numbers(numbers.0, numbers.1, numbers.2, numbers.3);
        assert_eq!(back.await.unwrap(), numbers);
    })
    .await;
}

#[tokio::test]
async fn bodies_of_every_size() {
    over_each(async |client| {
        // About the limit where a body leaves the metadata, about an eager message, beyond the limit on metadata.
        for len in [
            0,
            32_000,
            32_766,
            32_768,
            32_770,
            65_536,
            300_000,
            (1 << 20) - 8,
            (1 << 20) + 8,
            5 << 20,
        ] {
            let text: String = (0..len)
                .map(|i| char::from(b'a' + (i % 26) as u8))
                .collect();
            let back = client.strings(&text, "").await.unwrap();
            assert!(back == text, "{len} bytes");
        }
    })
    .await;
}

#[tokio::test]
async fn tensors_wherever_they_are() {
    over_each(async |client| {
        assert!(client.maybe(None).await.unwrap().is_none());
        for len in [0, 1, 5000, 70_000, 3 << 20] {
            let one = tensor(len, 4);
            same(
                &client.maybe(Some(one.clone())).await.unwrap(),
                &Some(one.clone()),
            );
            let layer = Layer::Stack(vec![
                Layer::Dense {
                    weight: one.clone(),
                    bias: None,
                },
                Layer::Nothing,
                Layer::Pair([tensor(len / 2, 6), one.clone()], 7),
                Layer::Stack(vec![Layer::Dense {
                    weight: tensor(len / 3, 5),
                    bias: Some(one.clone()),
                }]),
            ]);
            same(&client.layer(&layer).await.unwrap(), &layer);
            let many: Vec<Tensor> = (0..20).map(|i| tensor(len / 20 * i, i as u8)).collect();
            same(&client.many(&many).await.unwrap(), &many);
            let named = many.iter().enumerate();
            let named = named.map(|(i, tensor)| (format!("{i:03}"), (i as u8, tensor.clone())));
            same(
                &client
                    .named(named.collect::<BTreeMap<_, _>>())
                    .await
                    .unwrap(),
                &many,
            );
        }
        assert!(client.many(Vec::new()).await.unwrap().is_empty());
        // One tensor, many times.
        let again = vec![tensor(100_000, 7); 30];
        same(&client.many(&again).await.unwrap(), &again);
    })
    .await;
}

#[tokio::test]
async fn errors_carry_tensors_too() {
    over_each(async |client| {
        client.check(true).await.unwrap();
        match client.check(false).await {
            Err(CallError::Service(reason)) => {
                assert_eq!(reason.text, "not fine");
                same(&reason.evidence, &tensor(200_000, 9));
            }
            other => panic!("{other:?}"),
        }
    })
    .await;
}

async fn of_type<T: Element + PartialEq + std::fmt::Debug>(client: &ValuesClient, values: Vec<T>) {
    let tensor = Tensor::from_vec(values.clone(), [1, values.len() as u64, 1]).unwrap();
    let back = client.maybe(Some(tensor)).await.unwrap().unwrap();
    assert_eq!(back.dtype(), T::DTYPE);
    assert_eq!(back.shape(), [1, values.len() as u64, 1]);
    assert_eq!(back.as_slice::<T>().unwrap(), values);
}

#[tokio::test]
async fn every_type_of_element() {
    over_each(async |client| {
        of_type(&client, vec![1f32, f32::INFINITY, -0.0]).await;
        of_type(&client, vec![1f64; 10_000]).await;
        of_type(&client, vec![i8::MIN, 0, i8::MAX]).await;
        of_type(&client, vec![i16::MIN, 0, i16::MAX]).await;
        of_type(&client, vec![i32::MIN, 0, i32::MAX]).await;
        of_type(&client, vec![i64::MIN, 0, i64::MAX]).await;
        of_type(&client, vec![u8::MAX; 100_000]).await;
        of_type(&client, vec![u16::MAX, 1]).await;
        of_type(&client, vec![u32::MAX, 1]).await;
        of_type(&client, vec![u64::MAX, 1]).await;
        for dtype in [DType::F16, DType::BF16, DType::Bool] {
            let zeros = Tensor::zeros(dtype, [3, 0, 2]).unwrap();
            let back = client.maybe(Some(zeros.clone())).await.unwrap().unwrap();
            assert_eq!((back.dtype(), back.shape()), (dtype, zeros.shape()));
            let zeros = Tensor::zeros(dtype, [3, 7]).unwrap();
            same(
                &client.maybe(Some(zeros.clone())).await.unwrap(),
                &Some(zeros.clone()),
            );
        }
        let scalar = Tensor::scalar(2.5f32);
        same(
            &client.maybe(Some(scalar.clone())).await.unwrap(),
            &Some(scalar.clone()),
        );
    })
    .await;
}

#[tokio::test]
async fn views_of_a_larger_tensor_bring_their_rows_only() {
    over_each(async |client| {
        let table = Tensor::from_vec((0..600_000).collect::<Vec<i32>>(), [600, 1000]).unwrap();
        let before = client.connection().pipe().stats().bytes_out;
        let rows = table.rows(100..110).unwrap();
        let back = client.maybe(Some(rows.clone())).await.unwrap().unwrap();
        assert_eq!(
            back.as_slice::<i32>().unwrap(),
            rows.as_slice::<i32>().unwrap()
        );
        assert_eq!(back.as_slice::<i32>().unwrap()[0], 100_000);
        assert!(client.connection().pipe().stats().bytes_out - before < 60_000);
    })
    .await;
}

#[tokio::test]
async fn a_result_too_large_for_its_caller_is_that_calls_error() {
    let mut limits = tensorpipe::Limits::default();
    limits.tensor = 1 << 20;
    let near = tcp().limits(limits).build().unwrap();
    let far = tcp().build().unwrap();
    let server = serve(&far, LabService::new(Bench::default())).await;
    let client = LabClient::connect_with(&near, server.url()).await.unwrap();
    match client.zeros(2 << 20).await {
        Err(error @ CallError::BadReply(_)) => assert!(error.may_have_run()),
        other => panic!("{other:?}"),
    }
    assert_eq!(client.zeros(1 << 20).await.unwrap().byte_len(), 1 << 20);
}
