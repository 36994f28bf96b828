//! The crate's errors, stats and access-control lists, in the port's terms.

use zookeeper_client as client;

use crate::zk::{Acl, AclEntry, CreateMode, Stat, WatchEvent, ZkError};

/// Codes that the crate does not know, and that are a server's definite refusal.
const EPHEMERAL_ON_LOCAL_SESSION: i32 = -120;
const TOO_MANY_EPHEMERALS: i32 = -126;

/// A server's definite refusal of one request, or `None` if the error says nothing certain about its outcome.
pub(super) fn refusal(error: &client::Error) -> Option<ZkError> {
    use client::Error as E;
    Some(match error {
        E::NoNode => ZkError::NoNode,
        E::NodeExists => ZkError::NodeExists,
        E::NotEmpty => ZkError::NotEmpty,
        E::BadVersion => ZkError::BadVersion,
        E::NoChildrenForEphemerals => ZkError::NoChildrenForEphemerals,
        E::NoAuth => ZkError::NoAuth,
        E::InvalidAcl => ZkError::InvalidAcl,
        E::NotReadOnly => ZkError::NotReadOnly,
        E::Throttled => ZkError::Throttled,
        E::QuotaExceeded => ZkError::QuotaExceeded,
        E::BadArguments(why) => ZkError::BadArguments((*why).to_string()),
        // Answers to one request on a connection that lives on, but without a meaning of their own here. Not
        // every such code proves that nothing was applied, and `Unexpected` claims no more than that.
        E::Unimplemented => ZkError::Refused("it does not know the operation".to_owned()),
        E::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION) => ZkError::Refused(
            "its sessions are local ones, which can't hold a lock; set its localSessionsUpgradingEnabled"
                .to_owned(),
        ),
        E::UnexpectedErrorCode(TOO_MANY_EPHEMERALS) => {
            ZkError::Refused("this session has as many ephemeral nodes as its settings allow".to_owned())
        }
        E::MarshallingError => ZkError::Unexpected("the server could not read the request".to_owned()),
        E::UnexpectedErrorCode(code) => ZkError::Unexpected(code_name(*code)),
        E::NoWatcher | E::ReconfigDisabled => ZkError::Unexpected(error.to_string()),
        _ => return None,
    })
}

/// What the servers call a code that the crate does not know.
fn code_name(code: i32) -> String {
    let name = match code {
        -1 => "system error",
        -2 => "runtime inconsistency",
        -3 => "data inconsistency",
        -7 => "operation timeout",
        -122 => "request timeout",
        _ => "unknown",
    };
    format!("error code {code} ({name})")
}

pub(super) fn stat(stat: &client::Stat) -> Stat {
    Stat {
        czxid: stat.czxid,
        mzxid: stat.mzxid,
        pzxid: stat.pzxid,
        version: stat.version,
        cversion: stat.cversion,
        ephemeral_owner: stat.ephemeral_owner,
        data_length: stat.data_length,
        num_children: stat.num_children,
        ctime: stat.ctime,
    }
}

pub(super) fn event(event: &client::WatchedEvent) -> WatchEvent {
    match event.event_type {
        client::EventType::NodeCreated => WatchEvent::Created,
        client::EventType::NodeDeleted => WatchEvent::Deleted,
        client::EventType::NodeDataChanged => WatchEvent::DataChanged,
        client::EventType::NodeChildrenChanged => WatchEvent::ChildrenChanged,
        client::EventType::Session => WatchEvent::ConnectionEnded,
    }
}

pub(super) fn mode(mode: CreateMode) -> client::CreateMode {
    match mode {
        CreateMode::Persistent => client::CreateMode::Persistent,
        CreateMode::Container => client::CreateMode::Container,
        CreateMode::Ephemeral => client::CreateMode::Ephemeral,
        CreateMode::EphemeralSequential => client::CreateMode::EphemeralSequential,
    }
}

pub(super) fn acl(acl: &Acl) -> Result<Vec<client::Acl>, ZkError> {
    use client::{AuthId, Permission};
    match acl {
        Acl::Open => Ok(vec![client::Acl::new(Permission::ALL, AuthId::anyone())]),
        Acl::CreatorWritesAllRead => Ok(vec![
            client::Acl::new(Permission::ALL, AuthId::authed()),
            client::Acl::new(Permission::READ, AuthId::anyone()),
        ]),
        Acl::Entries(entries) => entries.iter().map(acl_entry).collect(),
    }
}

fn acl_entry(entry: &AclEntry) -> Result<client::Acl, ZkError> {
    use client::{AuthId, Permission};
    let permission = entry.permissions.chars().try_fold(Permission::NONE, |all, letter| {
        Ok(all
            | match letter {
                'c' => Permission::CREATE,
                'r' => Permission::READ,
                'w' => Permission::WRITE,
                'd' => Permission::DELETE,
                'a' => Permission::ADMIN,
                other => return Err(ZkError::BadArguments(format!("no such permission as {other:?}"))),
            })
    })?;
    Ok(client::Acl::new(permission, AuthId::new(&entry.scheme, &entry.id)))
}

/// The name that the server gave to a node made at `path`.
///
/// The crate hands over the suffix as a number. The server wrote it with Java's `%010d`, which pads a negative
/// number just as Rust does: the sign counts, and -2147483648 takes eleven characters.
pub(super) fn created_name(path: &str, mode: CreateMode, sequence: client::CreateSequence) -> String {
    let name = &path[path.rfind('/').map_or(0, |slash| slash + 1)..];
    match mode {
        CreateMode::EphemeralSequential => format!("{name}{:010}", sequence.into_i64()),
        CreateMode::Persistent | CreateMode::Container | CreateMode::Ephemeral => name.to_owned(),
    }
}
