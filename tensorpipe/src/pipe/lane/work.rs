//! Work of a lane that takes long: whoever drives the pipe does it in steps, without the pipe's lock. No thread has to be woken for
//! it, and between two steps messages pass, operations are cancelled, and the runtime's other tasks run.

/// One operation's work. Once it is over the pipe calls [`Lane::resume`](crate::channels::Lane::resume) for the operation.
pub(crate) trait Work: Send {
    /// Does some tens of microseconds of it. Returns whether there is more.
    fn step(&mut self) -> bool;

    /// A step took so long that the driver would hold others up: goes on with it on another thread, and resumes the operation by
    /// its lane's handle.
    fn elsewhere(self: Box<Self>);
}
