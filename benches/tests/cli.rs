//! `tp-bench` as it is called: real second processes, lines that parse, and nobody left behind.

#[path = "cli/channels.rs"]
mod channels;
#[path = "cli/processes.rs"]
mod processes;
#[path = "cli/rendezvous.rs"]
mod rendezvous;
#[path = "cli/run.rs"]
mod run;
#[path = "cli/systems.rs"]
mod systems;
#[path = "cli/tables.rs"]
mod tables;
