//! The binary, driven as another language's tests drive it.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use forelock_testkit::{CreateMode, Observer};
use serde_json::{Value, json};

struct Tool {
    child: Child,
    stdin: Option<ChildStdin>,
    stdout: BufReader<ChildStdout>,
    ready: Value,
}

impl Tool {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_forelock-testkit"))
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the binary");
        let stdout = BufReader::new(child.stdout.take().expect("its output"));
        let mut tool = Self { stdin: child.stdin.take(), child, stdout, ready: Value::Null };
        tool.ready = tool.line();
        tool
    }

    fn line(&mut self) -> Value {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("a line");
        serde_json::from_str(&line).expect("JSON")
    }

    fn send(&mut self, command: &str) {
        writeln!(self.stdin.as_mut().expect("its input"), "{command}").expect("sent");
    }

    fn ask(&mut self, command: &str) -> Value {
        self.send(command);
        self.line()
    }

    fn do_it(&mut self, command: &str) -> Value {
        let answer = self.ask(command);
        assert_eq!(answer["ok"], true, "{command}: {answer}");
        answer
    }

    fn connect(&self) -> Observer {
        let addr = self.ready["connect"].as_str().and_then(|addr| addr.parse().ok()).expect("an address");
        Observer::connect(addr).expect("a session")
    }
}

fn is_alive(pid: &Value) -> bool {
    std::path::Path::new(&format!("/proc/{pid}/cmdline"))
        .metadata()
        .is_ok_and(|_| std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| !line.is_empty()))
}

#[test]
fn a_server_and_a_proxy_are_driven_by_lines() {
    let mut server =
        Tool::start(&["serve", "--version", "3.8.6", "--tick-ms", "100", "--max-session-ms", "9000"]);
    assert_eq!(server.ready["version"], "3.8.6");
    let conf = server.do_it("four-letter conf");
    assert!(conf["answer"].as_str().is_some_and(|conf| conf.contains("maxSessionTimeout=9000")));

    let upstream = server.ready["connect"].as_str().expect("an address").to_owned();
    let mut proxy = Tool::start(&["proxy", "--upstream", &upstream]);
    let observer = proxy.connect();
    let rule = proxy.do_it("drop-reply creates 2 rst path=/a")["rule"].clone();
    let create = |path| observer.create(path, &[], CreateMode::Persistent);
    create("/a1").expect("the first");
    create("/b").expect("another path");
    create("/a2").expect_err("its reply is dropped");
    let fired = proxy.do_it(&format!("fired {rule} 10000"));
    assert_eq!((&fired["entry"]["path"], &fired["entry"]["err"]), (&json!("/a2"), &json!(0)));
    assert_eq!(observer.children("/").expect("children"), ["a1", "a2", "b", "zookeeper"]);
    assert_eq!(proxy.do_it("count create2")["count"], 3);
    assert_eq!(proxy.do_it("cut eof")["connections"], 1);
    for command in
        ["blackhole to-client new", "stall", "resume", "delay-ms 5", "delay-ms 1 2", "refuse", "restore"]
    {
        proxy.do_it(command);
    }
    assert_eq!(proxy.do_it("journal 5")["entries"].as_array().map(Vec::len), Some(5));
    for wrong in ["fly", "cut", "cut hard", "stall sideways", "drop-reply fly", "fired 7", "fired x"] {
        assert_eq!(proxy.ask(wrong)["ok"], false, "{wrong}");
    }

    let old = server.ready["pid"].clone();
    let new = server.do_it("restart")["pid"].clone();
    assert!(old != new && is_alive(&new) && !is_alive(&old));
    assert_eq!(observer.children("/").expect("children").len(), 4);

    // The end of its input is the end of the server.
    drop(server.stdin.take());
    assert!(server.child.wait().expect("ended").success());
    assert!(!is_alive(&new));
}

#[test]
fn a_server_ends_with_the_process_that_serves_it() {
    for signal in [libc::SIGTERM, libc::SIGKILL] {
        let mut server = Tool::start(&["serve"]);
        let pid = server.ready["pid"].clone();
        assert!(is_alive(&pid));
        // SAFETY: the child has not been waited for.
        unsafe { libc::kill(server.child.id().cast_signed(), signal) };
        assert_eq!(server.child.wait().expect("ended").success(), signal == libc::SIGTERM);
        let start = std::time::Instant::now();
        while is_alive(&pid) {
            assert!(start.elapsed().as_secs() < 10, "the server lives on");
            std::thread::yield_now();
        }
    }
}

#[test]
fn the_jars_are_fetched_by_themselves() {
    let fetched =
        Command::new(env!("CARGO_BIN_EXE_forelock-testkit")).args(["fetch", "--version", "3.9.5"]).output();
    let fetched = fetched.expect("the binary");
    let folder = String::from_utf8(fetched.stdout).expect("text");
    assert!(std::path::Path::new(folder.trim()).join("zookeeper-3.9.5.jar").is_file(), "{folder}");
    let unknown =
        Command::new(env!("CARGO_BIN_EXE_forelock-testkit")).args(["fetch", "--version", "1.0"]).output();
    assert!(!unknown.expect("the binary").status.success());
}
