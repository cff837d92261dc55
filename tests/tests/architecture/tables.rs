//! Which module may name which: what ARCHITECTURE.md draws, line by line.

/// Every module of `tensorpipe` and the modules that its code (not its tests) may name.
pub(crate) const PIPE: &[(&str, &[&str])] = &[
    // Leaves: plain types; `stop` is where tests stop a process.
    ("sync", &[]),
    ("stop", &["sync"]),
    ("log_limit", &["sync"]),
    ("address", &["error"]),
    ("error", &["device", "tensor"]),
    ("route", &["address", "device", "sync"]),
    ("descriptor", &["device", "tensor"]),
    ("message", &["descriptor", "device", "tensor"]),
    ("config", &["error", "proto", "sys"]),
    // Anew after a fork.
    ("process", &["proto", "sys::fork"]),
    // Memory.
    ("sys", &["error", "sync"]),
    // An algorithm, and where it lives.
    (
        "ring",
        &[
            "error",
            "sync",
            "sys::copy",
            "sys::memfd",
            "sys::processors",
        ],
    ),
    ("device", &["error", "sync", "sys"]),
    ("tensor", &["device", "error", "message"]),
    // The protocol sees what describes a message, and never the message.
    (
        "proto",
        &[
            "descriptor",
            "device::Device",
            "device::DeviceKind",
            "error",
            "tensor::DType",
            "tensor::MAX_DIMS",
            "tensor::Shape",
            "tensor::byte_len",
        ],
    ),
    // Not shipped: what the fuzz targets run plays the driver of the protocol.
    (
        "fuzzing",
        &["descriptor", "device", "error", "proto", "tensor::DType"],
    ),
    // Backends: they see memory and their side of the seam, not the pipe.
    (
        "transports",
        &["address", "error", "process", "ring", "sync", "sys"],
    ),
    (
        "channels",
        &[
            // Who the system says that the peer is.
            "address::SettledPeer",
            "device",
            "error",
            "pipe::LaneHandle",
            "pipe::LaneIo",
            "pipe::Outcome",
            "pipe::Work",
            "process",
            "proto::OpId",
            "route::Pays",
            "route::Degraded",
            "route::Threshold",
            "stop",
            "sync",
            // Shared memory and sockets between processes.
            "sys",
            "transports::BoxFuture",
            "transports::Connection",
        ],
    ),
    // The driver sees backends as traits.
    (
        "pipe",
        &[
            "address",
            "channels",
            "config",
            "descriptor",
            "device",
            "error",
            "message",
            "proto",
            "route",
            "stop",
            "sync",
            "sys::copy",
            // One thread for each process.
            "sys::fork",
            "tensor",
            "transports::Connection",
        ],
    ),
    (
        "negotiate",
        &[
            "address",
            "channels",
            "config",
            "context",
            "device",
            "error",
            "log_limit",
            "pipe",
            "process",
            "proto",
            "route",
            "stop",
            "sync",
            "transports",
        ],
    ),
    (
        "listener",
        &[
            "address",
            "context",
            "error",
            "log_limit",
            "negotiate",
            "pipe",
            "sync",
            // A forked child's copy stops nothing.
            "sys::fork",
            "transports",
        ],
    ),
    (
        "context",
        &[
            "address",
            "channels",
            "config",
            "device",
            "error",
            "listener",
            "negotiate",
            "pipe",
            "route::Refusal",
            "route::Requirement",
            "route::Threshold",
            "sync",
            // The global one is one for each process.
            "sys::fork",
            // `Tensor::to` takes memory of a context.
            "tensor::Tensor",
            "transports",
        ],
    ),
];

/// The same for `tensorpipe-rpc`.
pub(crate) const RPC: &[(&str, &[&str])] = &[
    ("value", &[]),
    ("caught", &[]),
    ("spare", &[]),
    ("builder", &["limits", "service"]),
    // Values and definitions: of calls only that a reply is encoded within one, and what references it gives away.
    (
        "codec",
        &[
            "context::within_call",
            "header::FailureCode",
            "observe::Figures",
            "remote",
            "spare",
        ],
    ),
    ("schema", &["caught", "lock"]),
    ("error", &["codec"]),
    ("header", &["codec::REPLY_HEADER", "spare"]),
    (
        "context",
        &[
            "codec::Reply",
            "engine::CallStreams",
            "engine::Engine",
            "header::TraceContext",
            "lock",
            "observe",
            "remote::Encoding",
            "remote::encoding",
            "service::HandlerFuture",
        ],
    ),
    ("service", &["codec", "context::CallContext", "schema"]),
    // Notes of calls, for whoever wants to know what becomes of them.
    (
        "observe",
        &[
            "codec",
            "context",
            "engine::CallStreams",
            "engine::Engine",
            "engine::Outcome",
            "engine::Terms",
            "error::CallError",
            "header",
            "lock",
            "schema::Method",
            "schema::Streams",
        ],
    ),
    ("placement", &["codec::Encoded", "lock", "schema::Method"]),
    // In front of a handler, behind the engine: neither knows of the other.
    (
        "batch",
        &[
            "caught",
            "codec",
            "context::CallContext",
            "context::Caller",
            "context::own_bytes",
            "header::FailureCode",
            "lock",
            "service",
        ],
    ),
    // The engine knows the server that it serves for, and no client.
    (
        "engine",
        &[
            "caught",
            "codec",
            "context",
            "error",
            "header",
            "limits",
            "lock",
            "observe",
            "placement",
            "remote",
            "schema",
            "server::Member",
            "server::ServerShared",
            "server::Target",
            "spare",
        ],
    ),
    (
        "server",
        &[
            "builder",
            "engine",
            "header",
            "limits",
            "lock",
            "remote::Grants",
            "schema::Method",
            "service",
        ],
    ),
    // What an engine keeps for references, and what a user has of them.
    (
        "remote",
        &[
            "call",
            "caught",
            "client::Connection",
            "codec",
            "engine::Engine",
            "error",
            "header",
            "lock",
            "observe::metrics",
            "placement::CallPlacement",
            "schema",
        ],
    ),
    (
        "call",
        &[
            "codec",
            "engine",
            "error",
            "observe",
            "placement::tensor_of",
            "remote",
            "schema",
        ],
    ),
    (
        "stream",
        &[
            "call",
            "caught",
            "client",
            "codec",
            "context",
            "engine",
            "error",
            "header",
            "observe::CallStats",
            "observe::metrics",
            "placement::naming",
            "placement::tensor_of",
            "remote::decoding",
            "schema",
        ],
    ),
    ("limits", &[]),
    ("callbacks", &["builder", "client", "context", "server"]),
    (
        "client",
        &[
            "call",
            "codec",
            "context",
            "engine",
            "error",
            "header",
            "lock",
            "observe",
            "placement",
            "remote",
            "schema",
        ],
    ),
    // On top of calls: a service of the library's own, and its clients.
    (
        "rendezvous",
        &[
            "call::Call",
            "client",
            "context::CallContext",
            // Which connection a consumer has, without a call's context, which would keep that call's task.
            "context::Caller",
            "error",
            "lock",
            "placement::DeviceMap",
            "service::Service",
        ],
    ),
    // Not shipped: what a fuzz target runs.
    (
        "fuzzing",
        &[
            "CallContext",
            "Connection",
            "Remote",
            "ServerLimits",
            "Streaming",
            "codec",
            "context::TraceContext",
            "engine::to_body",
            "header",
            "schema",
            "tensor_service",
        ],
    ),
    // A layer on top: of the engine it shares only how a body becomes a message.
    (
        "tarpc",
        &[
            "caught",
            "client",
            "codec",
            "context::TraceContext",
            "engine::Body",
            "engine::to_body",
            "engine::settle_body",
            "error",
            "header",
        ],
    ),
];
