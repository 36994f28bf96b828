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
    /// The path below which everything lies, `/` if none was given: the chroot.
    pub chroot: String,
}

impl ConnectString {
    /// Parses `text`: servers separated by commas, each `host`, `host:port` or `[ipv6]:port`, then an optional
    /// path that everything lies below, once, after the last server. The port is 2181 if left out.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` with what is wrong and where.
    pub fn parse(text: &str) -> Result<Self> {
        let bad = |why: String| Error::invalid(format!("connect string {text:?}: {why}"));
        if text.contains("://") {
            return Err(bad(format!("servers are written without a scheme, as {:?}", without_schemes(text))));
        }
        let (servers, chroot) = match text.find('/') {
            Some(slash) => (&text[..slash], &text[slash..]),
            None => (text, "/"),
        };
        if servers.trim().is_empty() {
            return Err(bad("names no server; write it as host:port,host:port".to_owned()));
        }
        if chroot.contains(',') {
            // Taken as it stands, the rest of the servers would be part of a path, and the path be made.
            return Err(bad(format!(
                "the chroot is written once, after the last server{}",
                with_one_chroot(text).map(|right| format!(", as {right:?}")).unwrap_or_default()
            )));
        }
        let mut endpoints = Vec::new();
        for server in servers.split(',').map(str::trim) {
            if server.is_empty() {
                return Err(bad("there is a comma with no server before or after it".to_owned()));
            }
            let endpoint = parse_server(server).map_err(&bad)?;
            if !endpoints.contains(&endpoint) {
                endpoints.push(endpoint);
            }
        }
        let chroot = path::canonical(chroot.trim_end()).map_err(|error| bad(error.message().to_owned()))?;
        Ok(Self { endpoints, chroot })
    }
}

/// The same text without `zk://` and the like before its servers.
fn without_schemes(text: &str) -> String {
    let server = |server: &str| server.rsplit("://").next().unwrap_or_default().trim().to_owned();
    text.split(',').map(server).collect::<Vec<_>>().join(",")
}

/// The same servers with the chroot that they have in common after the last one, if there is one in common.
fn with_one_chroot(text: &str) -> Option<String> {
    let mut servers = Vec::new();
    let mut common = None;
    for part in text.split(',') {
        let (server, chroot) = match part.find('/') {
            Some(slash) => (&part[..slash], Some(part[slash..].trim_end_matches('/'))),
            None => (part, None),
        };
        servers.push(server.trim());
        if let Some(chroot) = chroot
            && *common.get_or_insert(chroot) != chroot
        {
            return None;
        }
    }
    common.map(|chroot| format!("{}{chroot}", servers.join(",")))
}

fn parse_server(server: &str) -> Result<Endpoint, String> {
    if server.contains('=') {
        return Err(format!("{server:?} looks like a line of zoo.cfg; write host:port with the client port"));
    }
    if let Some(c) = server.chars().find(|c| c.is_whitespace() || matches!(c, ';' | '|')) {
        let right: Vec<_> = server.split(c).filter(|part| !part.is_empty()).collect();
        return Err(format!("servers are separated by commas, not by {c:?}: {:?}", right.join(",")));
    }
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
        return Err(many_colons(server));
    } else {
        match server.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (server, None),
        }
    };
    if host.is_empty() {
        return Err(format!("server {server:?} has no host"));
    }
    if let Some(c) = host.chars().find(|c| c.is_control() || "@?#\\\"'<>()[]{}".contains(*c)) {
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

/// What was meant by a server with several colons.
fn many_colons(server: &str) -> String {
    let mut parts = server.split(':');
    let host = parts.next().unwrap_or_default();
    let ports: Vec<_> = parts.collect();
    let all_ports = ports.iter().all(|port| port.parse::<u16>().is_ok());
    if server.parse::<std::net::Ipv6Addr>().is_err() && !host.is_empty() && all_ports {
        return format!(
            "server {server:?} has more than one port; write the client port alone, such as {host}:{}",
            ports[0]
        );
    }
    format!("server {server:?} looks like an IPv6 address; write it as [{server}]:port")
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
            ("zk1, zk2 /a ", "zk1:2181,zk2:2181", "/a"),
            ("zk/services;eu", "zk:2181", "/services;eu"),
        ] {
            assert_eq!(parsed(text), (servers.to_owned(), chroot.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn refused_strings_say_why() {
        for (text, why) in [
            ("", "names no server"),
            ("/a", "names no server"),
            ("zk,,zk", "a comma with no server"),
            ("zk1,zk2,", "a comma with no server"),
            (",zk1", "a comma with no server"),
            ("zk1:1/x,zk2:2/x", "the chroot is written once, after the last server, as \"zk1:1,zk2:2/x\""),
            ("zk1/x/,zk2/x", "as \"zk1,zk2/x\""),
            ("zk1/x,zk2", "as \"zk1,zk2/x\""),
            ("zk1/x, zk2 ,zk3/x", "as \"zk1,zk2,zk3/x\""),
            ("zk1/x,zk2/y", "the chroot is written once, after the last server"),
            ("zk1;zk2", "separated by commas, not by ';': \"zk1,zk2\""),
            ("zk1:1 zk2:2", "separated by commas, not by ' ': \"zk1:1,zk2:2\""),
            ("zk1\nzk2", "separated by commas, not by '\\n': \"zk1,zk2\""),
            ("zk1:2181:3888", "more than one port; write the client port alone, such as zk1:2181"),
            ("10.0.0.1:2888:3888", "more than one port"),
            ("server.1=zk1:2888:3888", "looks like a line of zoo.cfg"),
            ("zk://zk1", "without a scheme, as \"zk1\""),
            ("tcp://zk1:1,tcp://zk2:2/x", "without a scheme, as \"zk1:1,zk2:2/x\""),
            ("zookeeper://zk1,zk2/x", "without a scheme, as \"zk1,zk2/x\""),
            ("zk:0", "not a number from 1 to 65535"),
            ("zk:65536", "not a number from 1 to 65535"),
            ("zk:x", "not a number from 1 to 65535"),
            (":2181", "has no host"),
            ("::1", "[::1]:port"),
            ("[::1", "no closing bracket"),
            ("[zk]:1", "not an IPv6 address"),
            ("[::1]1", "not a port"),
            ("me@zk", "character '@'"),
            ("2001:db8::1", "[2001:db8::1]:port"),
            ("zk/a/../b", "segment \"..\""),
        ] {
            let error = ConnectString::parse(text).expect_err(text).to_string();
            assert!(error.contains(why), "{text:?}: {error}");
        }
    }
}
