//! The port's operations in the crate's terms.

use std::sync::Arc;
use std::time::Duration;

use zookeeper_client::{Acls, Client, Error};

use super::convert;
use super::link::Link;
use crate::env::BoxFuture;
use crate::zk::{
    Acl, Connection, CreateMode, Created, EndReason, Operation, Reply, SessionCredentials, Stat, Watch,
    ZkError,
};

/// A connection to a real server.
pub(super) struct ZooKeeperConnection {
    pub(super) link: Arc<Link>,
    pub(super) credentials: SessionCredentials,
    /// The server's address, unless it may be any of several.
    pub(super) server: Option<String>,
    pub(super) session_timeout: Duration,
    pub(super) read_only: bool,
}

impl Drop for ZooKeeperConnection {
    fn drop(&mut self) {
        // A session that is being closed goes on to be closed; the crate gives it up when the server is silent.
        if !self.link.is_closing() {
            self.link.abort();
        }
    }
}

impl Connection for ZooKeeperConnection {
    fn credentials(&self) -> SessionCredentials {
        self.credentials.clone()
    }

    fn server(&self) -> Option<&str> {
        self.server.as_deref()
    }

    fn session_timeout(&self) -> Duration {
        self.session_timeout
    }

    fn is_read_only(&self) -> bool {
        self.read_only
    }

    fn create(&self, path: &str, data: &[u8], mode: CreateMode, acl: &Acl) -> Reply<Created> {
        let acl = match convert::acl(acl) {
            Ok(acl) => acl,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        let (path, data) = (path.to_owned(), data.to_owned());
        self.link.request(|client| async move {
            let options = convert::mode(mode).with_acls(Acls::new(&acl));
            let (stat, sequence) = client.create(&path, &data, &options).await?;
            Ok(Created { name: convert::created_name(&path, mode, sequence), stat: convert::stat(&stat) })
        })
    }

    fn delete(&self, path: &str, version: Option<i32>) -> Reply<()> {
        let path = path.to_owned();
        self.link.request(move |client| async move { client.delete(&path, version).await })
    }

    fn get_data(&self, path: &str) -> Reply<(Vec<u8>, Stat)> {
        let path = path.to_owned();
        self.link.request(|client| async move {
            let (data, stat) = client.get_data(&path).await?;
            Ok((data, convert::stat(&stat)))
        })
    }

    fn watch_data(&self, path: &str) -> Reply<(Vec<u8>, Stat, Watch)> {
        let path = path.to_owned();
        let reply = self.link.watching_request(|client| async move {
            let (data, stat, watcher) = client.get_and_watch_data(&path).await?;
            Ok(((data, convert::stat(&stat)), watcher))
        });
        Box::pin(async move { reply.await.map(|((data, stat), watch)| (data, stat, watch)) })
    }

    fn set_data(&self, path: &str, data: &[u8], version: Option<i32>) -> Reply<Stat> {
        let (path, data) = (path.to_owned(), data.to_owned());
        self.link.request(move |client| async move {
            let stat = client.set_data(&path, &data, version).await?;
            Ok(convert::stat(&stat))
        })
    }

    fn exists(&self, path: &str) -> Reply<Option<Stat>> {
        let path = path.to_owned();
        self.link.request(|client| async move {
            let stat = client.check_stat(&path).await?;
            Ok(stat.as_ref().map(convert::stat))
        })
    }

    fn watch_exists(&self, path: &str) -> Reply<(Option<Stat>, Watch)> {
        let path = path.to_owned();
        self.link.watching_request(|client| async move {
            let (stat, watcher) = client.check_and_watch_stat(&path).await?;
            Ok((stat.as_ref().map(convert::stat), watcher))
        })
    }

    fn children(&self, path: &str) -> Reply<(Vec<String>, Stat)> {
        let path = path.to_owned();
        self.link.request(|client| async move {
            let (children, stat) = client.get_children(&path).await?;
            Ok((children, convert::stat(&stat)))
        })
    }

    fn watch_children(&self, path: &str) -> Reply<(Vec<String>, Stat, Watch)> {
        let path = path.to_owned();
        let reply = self.link.watching_request(|client| async move {
            let (children, stat, watcher) = client.get_and_watch_children(&path).await?;
            Ok(((children, convert::stat(&stat)), watcher))
        });
        Box::pin(async move { reply.await.map(|((children, stat), watch)| (children, stat, watch)) })
    }

    fn sync(&self, path: &str) -> Reply<()> {
        let path = path.to_owned();
        self.link.request(|client| async move { client.sync(&path).await })
    }

    fn multi(&self, operations: Vec<Operation>) -> Reply<()> {
        if operations.is_empty() {
            // The crate would answer this one by itself, and an answer has to prove a quorum.
            let error = ZkError::BadArguments("a multi needs at least one operation".to_owned());
            return Box::pin(std::future::ready(Err(error)));
        }
        let acls: Result<Vec<_>, _> = operations
            .iter()
            .map(|operation| match operation {
                Operation::Create { acl, .. } => convert::acl(acl),
                _ => Ok(Vec::new()),
            })
            .collect();
        let acls = match acls {
            Ok(acls) => acls,
            Err(error) => return Box::pin(std::future::ready(Err(error))),
        };
        self.link.request(|client| async move { commit(&client, &operations, &acls).await })
    }

    fn ended(&self) -> BoxFuture<EndReason> {
        self.link.ended()
    }

    fn has_ended(&self) -> bool {
        self.link.has_ended()
    }

    fn close(&self) -> Reply<()> {
        self.link.close()
    }

    fn abort(&self) {
        self.link.abort();
    }
}

/// Sends all of `operations`, each with its own access-control list, as one transaction.
async fn commit(
    client: &Client,
    operations: &[Operation],
    acls: &[Vec<zookeeper_client::Acl>],
) -> Result<(), Error> {
    let mut writer = client.new_multi_writer();
    for (operation, acl) in operations.iter().zip(acls) {
        match operation {
            // For a server, version -1 is any version.
            Operation::Check { path, version } => writer.add_check_version(path, version.unwrap_or(-1))?,
            Operation::Create { path, data, mode, .. } => {
                writer.add_create(path, data, &convert::mode(*mode).with_acls(Acls::new(acl)))?;
            }
            Operation::SetData { path, data, version } => writer.add_set_data(path, data, *version)?,
            Operation::Delete { path, version } => writer.add_delete(path, *version)?,
        }
    }
    writer.commit().await?;
    Ok(())
}
