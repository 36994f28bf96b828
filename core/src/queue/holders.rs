//! Who holds what, for re-entrance.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use super::OwnerKey;
use super::grant::Grant;
use crate::path;

/// The grants of a client that belong to an owner, by the lock's root and the owner.
#[derive(Default)]
pub(crate) struct Holders(Mutex<Known>);

type Known = BTreeMap<(String, OwnerKey), Weak<Grant>>;

impl Holders {
    /// What `owner` holds of the lock at `root`.
    pub(crate) fn find(&self, root: &str, owner: &OwnerKey) -> Option<Arc<Grant>> {
        self.known().get(&(root.to_owned(), owner.clone())).and_then(Weak::upgrade)
    }

    /// Notes who holds a grant.
    pub(crate) fn note(&self, grant: &Arc<Grant>) {
        note(&mut self.known(), grant);
    }

    /// Forgets who holds a grant.
    pub(crate) fn forget(&self, grant: &Arc<Grant>) {
        forget(&mut self.known(), grant);
    }

    /// Hands a grant over to another owner. In one go: of several who do it at the same time, the last one to come
    /// counts, and nothing is left of the others.
    pub(crate) fn hand_over(&self, grant: &Arc<Grant>, to: Option<OwnerKey>) {
        let mut known = self.known();
        forget(&mut known, grant);
        grant.set_owner(to);
        note(&mut known, grant);
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// The owner of a grant is read and changed only while the register is locked.

fn key(grant: &Grant) -> Option<(String, OwnerKey)> {
    Some((path::parent(&grant.node).to_owned(), grant.owner()?))
}

fn note(known: &mut Known, grant: &Arc<Grant>) {
    if let Some(key) = key(grant) {
        known.insert(key, Arc::downgrade(grant));
    }
}

fn forget(known: &mut Known, grant: &Arc<Grant>) {
    let Some(key) = key(grant) else { return };
    if known.get(&key).is_some_and(|known| known.as_ptr() == Arc::as_ptr(grant)) {
        known.remove(&key);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::time::Duration;

    use super::super::grant::Terms;
    use super::*;
    use crate::env::{Clock, Moment};
    use crate::path::LockPath;
    use crate::session::Session;
    use crate::zk::{SessionCredentials, SessionId};

    struct Stopped;

    impl Clock for Stopped {
        fn now(&self) -> Moment {
            Moment::from_nanos(0)
        }
    }

    fn grant() -> Arc<Grant> {
        let credentials = SessionCredentials { id: SessionId(1), password: Vec::new(), opaque: None };
        let session = Session::new(credentials, Arc::new(Stopped), Moment::from_nanos(u64::MAX));
        let terms = Terms {
            path: LockPath::parse("/a").expect("a path"),
            node: "/a/node".to_owned(),
            token: 1,
            epoch: 1,
            sequence: 0,
            owner: Some(OwnerKey::new("first")),
            waited: Duration::ZERO,
            max_hold: None,
        };
        Grant::new(terms, session, Moment::from_nanos(0))
    }

    #[test]
    fn hand_overs_at_the_same_time_leave_one_owner() {
        const THREADS: usize = 8;
        const ROUNDS: usize = 200;
        let holders = Holders::default();
        let grant = grant();
        holders.note(&grant);
        let barrier = Barrier::new(THREADS);
        for round in 0..ROUNDS {
            std::thread::scope(|scope| {
                for thread in 0..THREADS {
                    let (holders, grant, barrier) = (&holders, &grant, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        for turn in 0..20 {
                            let to = (turn + thread) % (THREADS + 1);
                            let to = (to < THREADS).then(|| OwnerKey::new(format!("{round} {to}")));
                            holders.hand_over(grant, to);
                        }
                    });
                }
            });
            let known: Vec<_> = holders.known().keys().map(|(_, owner)| owner.clone()).collect();
            assert_eq!(known, Vec::from_iter(grant.owner()), "round {round}");
        }
        let owner = OwnerKey::new("last");
        holders.hand_over(&grant, Some(owner.clone()));
        assert!(holders.find("/a", &owner).is_some_and(|found| Arc::ptr_eq(&found, &grant)));
        holders.forget(&grant);
        assert!(holders.known().is_empty());
    }
}
