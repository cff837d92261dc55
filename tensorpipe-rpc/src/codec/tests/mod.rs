//! Round trips, refused types, and hostile bytes.

mod attributes;
mod hostile;
mod limits;
mod round_trip;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensorpipe::Tensor;

use super::{DecodeError, EncodeError, Encoded, Encoder, decode_reply};

fn encode<T: Serialize + DeserializeOwned>(value: &T) -> Result<Encoded, EncodeError> {
    let mut encoder = Encoder::new();
    encoder.push::<T>("x", value)?;
    Ok(encoder.finish())
}

fn decode<T: DeserializeOwned>(encoded: Encoded) -> Result<T, DecodeError> {
    decode_reply(encoded.metadata, encoded.payloads, encoded.tensors)
}

fn bytes_as<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    decode_reply(bytes.to_vec(), Vec::new(), Vec::new())
}

fn there_and_back<T: Serialize + DeserializeOwned>(value: &T) -> T {
    decode(encode(value).unwrap()).unwrap()
}

fn tensor(value: i32) -> Tensor {
    Tensor::from_vec(vec![value], [1]).unwrap()
}

fn number(tensor: &Tensor) -> i32 {
    tensor.as_slice::<i32>().unwrap()[0]
}
