//! Every channel through the channel suite.
#![allow(missing_docs, reason = "a test")]

use std::sync::Arc;

use tensorpipe::channels::{BasicChannel, XthChannel};

tensorpipe::channel_conformance!(basic, || Arc::new(BasicChannel::new()));
tensorpipe::channel_conformance!(xth, || Arc::new(XthChannel::new()));
