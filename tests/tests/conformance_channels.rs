//! Every channel through the channel suite.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, MptChannel, XthChannel};

tensorpipe::channel_conformance!(basic, || Arc::new(BasicChannel::new()));
// Whatever the size.
tensorpipe::channel_conformance!(mpt, || Arc::new(MptChannel::new().from_len(0)));
tensorpipe::channel_conformance!(xth, || Arc::new(XthChannel::new()));
