//! A call over replicas: retried on another one where that is safe, within one deadline.
//!
//! A call that did not run is retried whatever its method. One that may have run is retried only if its method is idempotent. If
//! any attempt may have run, the error says so.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures_util::FutureExt;
use tensorpipe::ambient;

use super::ReplicatedService;
use super::replica::Picked;
use super::table::{Pick, Shared};
use super::verdict::{Verdict, verdict};
use crate::call::{CancelOnDrop, Sent, StartedCall};
use crate::caught::ignore_panic;
use crate::client::connection::Connection;
use crate::client::encoded_call::EncodedCall;
use crate::engine::{Deadline, Engine, Outcome};
use crate::error::{CallError, ConnectError, PlaceError};
use crate::observe::{Attempts, CallTrace, tell_last_failed};
use crate::schema::Schema;
use crate::timer::Sleep;

impl ReplicatedService {
    /// Makes a call.
    pub(in crate::client) fn call(&self, arguments: EncodedCall) -> StartedCall {
        let shared = &self.replicas.inner.shared;
        self.replicas.inner.budget.deposit();
        let call = RetryingCall {
            replicated: self.clone(),
            left: shared.options.max_attempts,
            tried: Vec::new(),
            ran: None,
            peer: String::new(),
            attempts: arguments.options.wants_stats.then(Attempts::new),
            arguments,
        };
        let attempts = call.attempts.clone();
        // The first attempt is sent now, before anybody polls the call.
        let first = match shared.pick(self.service, &[]) {
            Pick::Replica(picked) => Some(call.send(picked)),
            _ => None,
        };
        StartedCall::Retrying(Box::pin(call.finish(first)), attempts)
    }

    /// A live replica, for a call that is sent once.
    pub(in crate::client) fn here(&self, call: &EncodedCall) -> Result<Picked, CallError> {
        let shared = &self.replicas.inner.shared;
        match shared.pick(self.service, &[]) {
            Pick::Replica(picked) => Ok(picked),
            _ => {
                let error = self.unavailable();
                tell_last_failed(None, call.options.method, "", &error);
                Err(error)
            }
        }
    }

    /// Whether this is the connection of one of these replicas, also of one that gets no calls for a while.
    pub(in crate::client) fn has(&self, engine: &Arc<Engine>) -> bool {
        let shared = Arc::as_ptr(&self.replicas.inner.shared);
        let its = engine.replicas.get();
        its.is_some_and(|replicas| std::ptr::addr_eq(replicas.as_ptr(), shared))
    }

    /// The number that the service has at this server, which is one of these replicas.
    pub(in crate::client) fn service_at(&self, owner: &Arc<Engine>) -> Result<u32, CallError> {
        if let Some(service) = owner.bound(self.schema) {
            return Ok(service);
        }
        if let Some(error) = owner.pipe.ended().now_or_never() {
            return Err(CallError::of_pipe(error, false, false));
        }
        if owner.calls.is_draining() {
            return Err(CallError::ShuttingDown);
        }
        let shared = &self.replicas.inner.shared;
        let is_it = |connection: &Connection| Arc::ptr_eq(&connection.engine, owner);
        match shared.refusal(self.service, is_it) {
            Some(refusal) => Err(CallError::Unresolved(
                format!("its owner does not serve that: {refusal}").into(),
            )),
            // It may have answered just now.
            None => owner.bound(self.schema).ok_or_else(|| self.unavailable()),
        }
    }

    /// The error of a call that is sent once, and has not been.
    fn unavailable(&self) -> CallError {
        CallError::Unavailable {
            replicas: self.replicas.inner.shared.errors(self.service),
            may_have_run: false,
        }
    }
}

struct RetryingCall {
    replicated: ReplicatedService,
    arguments: EncodedCall,
    /// How many times it may still be sent.
    left: u32,
    /// Replicas that did not take the call.
    tried: Vec<usize>,
    /// The error of an attempt that may have run.
    ran: Option<CallError>,
    /// The name of the peer that failed last.
    peer: String,
    /// A record of each attempt, if the caller asked for figures.
    attempts: Option<Arc<Attempts>>,
}

/// One attempt.
struct Attempt {
    picked: Picked,
    call: CancelOnDrop,
}

impl RetryingCall {
    fn send(&self, picked: Picked) -> Result<Attempt, CallError> {
        let engine = &picked.live.connection.engine;
        let now = ambient::now();
        let left = self.deadline().map(|(at, _)| at - now.min(at));
        let sent = self.arguments.send(engine, picked.service, left, true)?;
        if let (Some(attempts), Some(trace)) = (&self.attempts, &sent.1.trace) {
            attempts.add(trace.clone());
        }
        let call = CancelOnDrop::new(sent);
        Ok(Attempt { picked, call })
    }

    fn deadline(&self) -> Deadline {
        self.arguments.options.deadline
    }

    async fn finish(
        mut self,
        first: Option<Result<Attempt, CallError>>,
    ) -> (Outcome, Option<Sent>) {
        let mut next = match first {
            Some(attempt) => attempt,
            None => self.next(None).await,
        };
        loop {
            let mut attempt = match next {
                Ok(attempt) => attempt,
                Err(error) => return self.fails(error, None),
            };
            self.left = self.left.saturating_sub(1);
            let (outcome, sent) = attempt.call.outcome().await;
            let Outcome::Failed(error) = outcome else {
                answered(&attempt);
                return (outcome, sent);
            };
            let peer = attempt.picked.live.connection.engine.pipe.peer_name();
            peer.clone_into(&mut self.peer);
            let trace = sent.and_then(|(_, slot)| slot.trace.clone());
            if let Some(trace) = &trace {
                // It may have been answered as well, just too late.
                trace.attempt_failed(&error);
            }
            if let Err(error) = self.judge(&attempt, &error) {
                return self.fails(error, trace);
            }
            drop((attempt, trace));
            next = self.next(Some(error)).await;
        }
    }

    /// Updates the replica after an attempt's error. Returns the error if there is no further attempt.
    fn judge(&mut self, attempt: &Attempt, error: &CallError) -> Result<(), CallError> {
        let shared = self.shared();
        let Picked { number, live, .. } = &attempt.picked;
        let verdict = verdict(error);
        match verdict {
            Verdict::Gone => shared.mark_lost(*number, live, to_connect(error.clone())),
            _ if matches!(error, CallError::Deadline { .. }) => {
                shared.missed_deadline(*number, live, self.replicated.service);
            }
            _ if !is_local(error) => answered(attempt),
            _ => {}
        }
        let over = verdict == Verdict::Final || self.left == 0;
        if over || error.may_have_run() && !self.arguments.options.method.idempotent {
            return Err(error.clone());
        }
        if error.may_have_run() {
            self.ran.get_or_insert_with(|| error.clone());
        }
        if matches!(verdict, Verdict::NotHere | Verdict::Unfit) {
            self.tried.push(*number);
        }
        if verdict == Verdict::NotHere && !self.replicated.replicas.inner.budget.withdraw() {
            return Err(error.clone());
        }
        Ok(())
    }

    /// Sends the next attempt as soon as there is a replica for it. `error` is that of the attempt before.
    async fn next(&self, error: Option<CallError>) -> Result<Attempt, CallError> {
        let picked = match self.is_late() {
            false => self.later().await,
            true => self.shared().pick(self.replicated.service, &self.tried),
        };
        match picked {
            Pick::Replica(picked) if !self.is_late() => {
                if let Some(error) = &error {
                    self.tell_again(&picked, error);
                }
                self.send(picked)
            }
            Pick::Replica(_) | Pick::AllTried => Err(error.unwrap_or_else(|| self.time_is_up())),
            Pick::NotYet | Pick::Unavailable => Err(self.unavailable()),
        }
    }

    /// It is sent again, after this error of the attempt before.
    fn tell_again(&self, to: &Picked, error: &CallError) {
        let Schema { service, .. } = self.replicated.schema;
        let method = self.arguments.options.method.name;
        let (peer, to) = (&*self.peer, to.live.connection.engine.peer_url.get());
        ignore_panic(
            || tracing::debug!(service, method, peer, to, %error, "the call failed, and is sent again"),
        );
    }

    /// Its deadline has passed.
    fn is_late(&self) -> bool {
        self.deadline().is_some_and(|(at, _)| at <= ambient::now())
    }

    fn shared(&self) -> &Shared {
        &self.replicated.replicas.inner.shared
    }

    /// Waits for a replica until the deadline; [`Pick::NotYet`] if none is live by then.
    async fn later(&self) -> Pick {
        let picked = self
            .shared()
            .wait_pick(self.replicated.service, &self.tried);
        let until = self.deadline().map(|(at, _)| at);
        let sleep = Sleep::new(&self.replicated.replicas.inner.runtime, until);
        sleep.or(picked).await.unwrap_or(Pick::NotYet)
    }

    fn time_is_up(&self) -> CallError {
        let after = self.deadline().map(|(_, after)| after);
        CallError::late(after.unwrap_or_default(), false)
    }

    fn unavailable(&self) -> CallError {
        let shared = self.shared();
        CallError::Unavailable {
            replicas: shared.errors(self.replicated.service),
            may_have_run: self.ran.is_some(),
        }
    }

    /// The call has failed: this error may be that of an attempt. If an earlier attempt may have run, so may the call.
    fn fails(self, error: CallError, of: Option<Arc<CallTrace>>) -> (Outcome, Option<Sent>) {
        let (error, of) = match self.ran {
            Some(ran) if !error.may_have_run() => (ran, None),
            _ => (error, of),
        };
        let method = self.arguments.options.method;
        tell_last_failed(of.as_ref(), method, &self.peer, &error);
        (Outcome::Failed(error), None)
    }
}

/// Whether the error may be this end's own, and not the server's answer.
fn is_local(error: &CallError) -> bool {
    matches!(
        error,
        CallError::Connection { .. }
            | CallError::NoPlace {
                error: PlaceError::Here(_),
                may_have_run: false,
            }
    )
}

/// Marks the replica's server as working.
fn answered(attempt: &Attempt) {
    attempt.picked.live.answered.store(true, Ordering::Relaxed);
}

/// The reason why a replica is gone, from the error of the call that noticed.
fn to_connect(error: CallError) -> ConnectError {
    match error {
        CallError::Connection { error, .. } => ConnectError::Pipe(error),
        CallError::ShuttingDown => ConnectError::ShuttingDown,
        error => ConnectError::Call(error),
    }
}
