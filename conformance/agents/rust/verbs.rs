//! What the agent can do.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::time::Duration;

use forelock::{
    AcquireOptions, Client, Error, ErrorCode, Heartbeat, LockState, Mutex, MutexOptions, Naming, Options,
    OwnerKey, RetryPolicy, Timeout,
};
use forelock_conformance::protocol::{Line, Request};
use forelock_testkit::proxy::boot_time_ns;
use tokio::sync::{Notify, oneshot};

use crate::locks::{Block, End, Locks, describe, lost};
use crate::output::{Failure, event, outcome, result, say, senseless, state};

/// One actor.
#[derive(Default)]
pub(crate) struct Agent {
    client: RefCell<Option<Client>>,
    locks: Locks,
    cancels: RefCell<HashMap<u64, oneshot::Sender<()>>>,
    unblock: Rc<Notify>,
}

/// Why a block ended.
enum BlockError {
    Body,
    Engine(Error),
}

impl From<Error> for BlockError {
    fn from(error: Error) -> Self {
        Self::Engine(error)
    }
}

fn milliseconds(request: &Request, name: &str) -> Option<Duration> {
    request.number(name).map(Duration::from_millis)
}

fn path(request: &Request) -> &str {
    request.text("path").unwrap_or_default()
}

impl Agent {
    /// Does what is asked, unless it is cancelled first.
    pub(crate) async fn answer(&self, request: &Request) -> Line {
        let (cancel, cancelled) = oneshot::channel();
        self.cancels.borrow_mut().insert(request.id, cancel);
        let began = boot_time_ns();
        let mut line = tokio::select! {
            biased;
            Ok(()) = cancelled => result("cancelled"),
            done = self.act(request) => outcome(done),
        };
        self.cancels.borrow_mut().remove(&request.id);
        line.id = Some(request.id);
        line.began = Some(began);
        line.at.get_or_insert_with(boot_time_ns);
        line
    }

    /// Ends in order, as a program does that ends.
    pub(crate) async fn end(&self) {
        let client = self.client.borrow_mut().take();
        if let Some(client) = client {
            let _ = client.close().await;
        }
    }

    fn client(&self) -> Result<Client, Failure> {
        self.client.borrow().clone().ok_or_else(|| senseless("there is no client"))
    }

    async fn act(&self, request: &Request) -> Result<Line, Failure> {
        match request.verb.as_str() {
            "ping" => {}
            "connect" => self.connect(request).await?,
            "close" => self.client()?.close().await?,
            "state" => {
                let change = self.client()?.state();
                return Ok(result(change.map_or("none", |change| change.state.as_str())));
            }
            "ensure-root" => drop(self.client()?.ensure_root(path(request)).await?),
            "acquire" | "try-acquire" => return self.acquire(request).await,
            "enter-block" => return self.enter_block(request).await,
            "leave-block" => return self.end_block(request, End::Leave).await,
            "throw-in-block" => return self.end_block(request, End::Throw).await,
            "cancel" => {
                let cancel = request.number("of").and_then(|id| self.cancels.borrow_mut().remove(&id));
                cancel
                    .and_then(|cancel| cancel.send(()).ok())
                    .ok_or_else(|| senseless("nothing to cancel"))?;
            }
            "listen" => self.listen(request)?,
            "unblock-listener" => self.unblock.notify_one(),
            "stall-runtime" => std::thread::sleep(milliseconds(request, "for").unwrap_or_default()),
            _ => return self.with_lock(request).await,
        }
        Ok(result("ok"))
    }

    /// What is done with a lock that is held, or was.
    async fn with_lock(&self, request: &Request) -> Result<Line, Failure> {
        let handle = self.locks.find(path(request)).ok_or_else(|| senseless("no lock at that path"))?;
        let held = &handle.held;
        let owner = |name: &str| match request.text(name) {
            Some(name) => Some(OwnerKey::new(name)),
            None => handle.owner.borrow().clone(),
        };
        match request.verb.as_str() {
            "release" => {
                let done = held.release_as(owner("by").as_ref()).await;
                let refused = matches!(&done, Err(why) if why.code() == ErrorCode::NotOwner);
                handle.released.replace(*handle.released.borrow() || !refused);
                done?;
            }
            "hand-over" => {
                let to = owner("to");
                held.hand_over(to.clone())?;
                handle.owner.replace(to);
            }
            "is-valid" => {
                let valid = held.is_valid();
                return Ok(result(valid.to_string()));
            }
            "lock-state" => {
                return Ok(result(match held.state() {
                    LockState::Held => "held".to_owned(),
                    LockState::Suspect => "suspect".to_owned(),
                    LockState::Lost(reason) => format!("lost {reason}"),
                    LockState::Released => "released".to_owned(),
                }));
            }
            "verify" => held.verify().await?,
            "ensure" => held.ensure(milliseconds(request, "min").unwrap_or_default())?,
            "await-revocation" => held.revocation_asked().await,
            "supersede" => held.mark_superseded(),
            other => return Err(senseless(format!("the Rust agent can't {other}"))),
        }
        Ok(result("ok"))
    }

    async fn connect(&self, request: &Request) -> Result<(), Failure> {
        let servers = request.text("servers").unwrap_or_default();
        let client = Client::with_options(servers, options(request)?)?;
        let mut states = client.states();
        tokio::task::spawn_local(async move {
            while let Some(change) = states.next().await {
                say(&state(change));
            }
        });
        self.client.replace(Some(client.clone()));
        if !request.args.contains_key("lazily") {
            client.connect().await?;
        }
        Ok(())
    }

    fn mutex(&self, request: &Request) -> Result<Mutex, Failure> {
        let naming = match request.text("naming") {
            None | Some("curator") => Naming::Curator,
            Some("kazoo") => Naming::Kazoo,
            Some("epoch") => Naming::Epoch,
            Some(other) => return Err(senseless(format!("no naming is called {other}"))),
        };
        let options = MutexOptions::default()
            .with_naming(naming)
            .with_max_hold(milliseconds(request, "max-hold"))
            .with_acquire_timeout(milliseconds(request, "timeout").map_or(Timeout::Default, Timeout::After));
        Ok(self.client()?.mutex_with(path(request), options)?)
    }

    async fn acquire(&self, request: &Request) -> Result<Line, Failure> {
        let mutex = self.mutex(request)?;
        let owner = request.text("owner").map(OwnerKey::new);
        let options = AcquireOptions::default().with_owner(owner.clone());
        let held = if request.verb == "try-acquire" {
            mutex.try_acquire_with(options).await?
        } else {
            Some(mutex.acquire_with(options).await?)
        };
        let at = boot_time_ns();
        Ok(match held {
            Some(held) => Line { at: Some(at), ..self.locks.keep(path(request), owner, held) },
            None => Line { at: Some(at), ..result("none") },
        })
    }

    async fn enter_block(&self, request: &Request) -> Result<Line, Failure> {
        let mutex = self.mutex(request)?;
        let (end, told) = oneshot::channel();
        let (say_entered, entered) = oneshot::channel();
        let (say_ended, ended) = oneshot::channel();
        let place = path(request).to_owned();
        tokio::task::spawn_local(async move {
            let body = async |held: &forelock::HeldLock| {
                let _ = say_entered.send(Line { at: Some(boot_time_ns()), ..describe(held) });
                say(&Line { path: Some(place.clone()), ..event("body") });
                let mut told = told;
                let told = tokio::select! {
                    biased;
                    told = &mut told => told,
                    Some(reason) = held.lost() => {
                        say(&lost(&place, held, reason));
                        told.await
                    }
                };
                match told {
                    Ok(End::Throw) => Err(BlockError::Body),
                    Ok(End::Leave) | Err(_) => Ok(()),
                }
            };
            let line = match mutex.with(body).await {
                Ok(()) => result("ok"),
                Err(BlockError::Body) => result("body-error"),
                Err(BlockError::Engine(why)) => outcome(Err(why.into())),
            };
            let _ = say_ended.send(line);
        });
        match entered.await {
            Ok(line) => {
                self.locks.enter(path(request), Block { end, ended });
                Ok(line)
            }
            // The body was never run, and its sender is gone with it.
            Err(_) => ended.await.map_err(|_| senseless("the block is gone")),
        }
    }

    async fn end_block(&self, request: &Request, how: End) -> Result<Line, Failure> {
        let block = self.locks.take_block(path(request)).ok_or_else(|| senseless("no block at that path"))?;
        let _ = block.end.send(how);
        block.ended.await.map_err(|_| senseless("the block is gone"))
    }

    /// A listener that does something when it sees a state.
    fn listen(&self, request: &Request) -> Result<(), Failure> {
        let client = self.client()?;
        let mut states = client.states();
        let (what, place) = (request.text("do").unwrap_or_default().to_owned(), path(request).to_owned());
        let on = request.text("on").unwrap_or_default().to_owned();
        let unblock = self.unblock.clone();
        tokio::task::spawn_local(async move {
            while let Some(change) = states.next().await {
                if change.state.as_str() == on {
                    break;
                }
            }
            let done = match what.as_str() {
                "acquire" => acquire_and_release(&client, &place).await,
                "block" => {
                    unblock.notified().await;
                    Ok(result("ok"))
                }
                other => Err(senseless(format!("no listener can {other}"))),
            };
            say(&Line { event: Some("listener".to_owned()), ..outcome(done) });
        });
        Ok(())
    }
}

async fn acquire_and_release(client: &Client, path: &str) -> Result<Line, Failure> {
    let held = client.mutex(path)?.acquire().await?;
    held.release().await?;
    Ok(result("held"))
}

fn options(request: &Request) -> Result<Options, Failure> {
    // The runner's cells are chroots, and a server that has lost its data has lost them too.
    let mut options = Options::default().with_create_chroot(true);
    let set = |field: &mut Duration, name: &str| {
        if let Some(value) = milliseconds(request, name) {
            *field = value;
        }
    };
    set(&mut options.session_timeout, "session");
    set(&mut options.connection_timeout, "connection-timeout");
    set(&mut options.operation_timeout, "operation-timeout");
    set(&mut options.release_timeout, "release-timeout");
    set(&mut options.close_timeout, "close-timeout");
    options.tick = milliseconds(request, "tick");
    options.label = request.text("label").map(str::to_owned);
    if let Some(timeout) = milliseconds(request, "acquire-timeout") {
        options.acquire_timeout = Some(timeout);
    }
    if let Some(namespace) = request.text("namespace") {
        namespace.clone_into(&mut options.namespace);
    }
    if let Some(attempts) = request.number("retry-attempts") {
        let delay = milliseconds(request, "retry-delay").unwrap_or(Duration::from_millis(10));
        options.retry = RetryPolicy::Times { attempts: u32::try_from(attempts).unwrap_or(u32::MAX), delay };
    }
    options.heartbeat = match request.text("heartbeat") {
        None | Some("session") => Heartbeat::Session,
        Some("quorum") => Heartbeat::Quorum,
        Some(other) => return Err(senseless(format!("no heartbeat is called {other}"))),
    };
    Ok(options)
}
