//! The connect string: which servers, and where below them.

use crate::error::{Error, Result};
use crate::path;
use crate::zk::Endpoint;

const DEFAULT_PORT: u16 = 2181;

/// A parsed connect string, such as `zk1:2181,zk2,[::1]:2182/services`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectString {
    /// The servers, in the order given, each once.
    pub endpoints: Vec<Endpoint>,
    /// The path below which everything lies, `/` if none was given.
    pub chroot: String,
}

impl ConnectString {
    /// Parses `text`: servers separated by commas, each `host`, `host:port` or `[ipv6]:port`, then an optional
    /// path that everything lies below. The port is 2181 if left out.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with what is wrong and where.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: String| Error::invalid(format!("connect string {text:?}: {why}"));
        let (servers, chroot) = match text.find('/') {
            Some(slash) => (&text[..slash], &text[slash..]),
            None => (text, "/"),
        };
        if servers.trim().is_empty() {
            return Err(bad("names no server; write it as host:port,host:port".to_owned()));
        }
        let mut endpoints = Vec::new();
        for server in servers.split(',') {
            let endpoint = parse_server(server.trim()).map_err(&bad)?;
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        let chroot = path::canonical(chroot).map_err(|error| bad(error.message().to_owned()))?;
        Ok(Self { endpoints, chroot })
    }
}

fn parse_server(server: &str) -> Result<Endpoint, String> {
    let (host, port) = if let Some(rest) = server.strip_prefix('[') {
        let (host, rest) =
            rest.split_once(']').ok_or_else(|| format!("server {server:?} has no closing bracket"))?;
        if host.parse::<std::net::Ipv6Addr>().is_err() {
            return Err(format!("{host:?} is not an IPv6 address"));
        }
        match rest.strip_prefix(':') {
            Some(port) => (host, Some(port)),
            None if rest.is_empty() => (host, None),
            None => return Err(format!("server {server:?} has {rest:?} after the bracket, not a port")),
        }
    } else if server.matches(':').count() > 1 {
        return Err(format!("server {server:?} looks like an IPv6 address; write it as [{server}]:port"));
    } else {
        match server.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (server, None),
        }
    };
    if host.is_empty() {
        return Err(format!("server {server:?} has no host"));
    }
    if let Some(c) = host.chars().find(|c| c.is_whitespace() || c.is_control() || "@?#\\".contains(*c)) {
        return Err(format!("host {host:?} has the character {c:?}"));
    }
    let port =
        match port {
            None => DEFAULT_PORT,
            Some(port) => port.parse().ok().filter(|port| *port != 0).ok_or_else(|| {
                format!("port {port:?} of server {server:?} is not a number from 1 to 65535")
            })?,
        };
    Ok(Endpoint { host: host.to_owned(), port })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> (String, String) {
        let ConnectString { endpoints, chroot } = ConnectString::parse(text).expect(text);
        (endpoints.iter().map(ToString::to_string).collect::<Vec<_>>().join(","), chroot)
    }

    #[test]
    fn servers_ports_and_chroot() {
        for (text, servers, chroot) in [
            ("zk", "zk:2181", "/"),
            ("zk:99", "zk:99", "/"),
            ("zk1:1,zk2", "zk1:1,zk2:2181", "/"),
            (" zk1 , zk2 ", "zk1:2181,zk2:2181", "/"),
            ("zk,zk:2181", "zk:2181", "/"),
            ("[::1]:7", "[::1]:7", "/"),
            ("[::1]", "[::1]:2181", "/"),
            ("zk1,zk2/a//b/", "zk1:2181,zk2:2181", "/a/b"),
            ("zk/", "zk:2181", "/"),
        ] {
            assert_eq!(parsed(text), (servers.to_owned(), chroot.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn refused_strings_say_why() {
        for (text, why) in [
            ("", "names no server"),
            ("/a", "names no server"),
            ("zk,,zk", "has no host"),
            ("zk:0", "not a number from 1 to 65535"),
            ("zk:65536", "not a number from 1 to 65535"),
            ("zk:x", "not a number from 1 to 65535"),
            (":2181", "has no host"),
            ("::1", "[::1]:port"),
            ("[::1", "no closing bracket"),
            ("[zk]:1", "not an IPv6 address"),
            ("[::1]1", "not a port"),
            ("z k", "character ' '"),
            ("zk/a/../b", "segment \"..\""),
        ] {
            let error = ConnectString::parse(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
