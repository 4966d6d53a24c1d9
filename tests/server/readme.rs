//! The README's commands, run as they stand there.

use std::path::Path;

use crate::support::server::run;
use crate::support::{Server, tools};

fn readme() -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    std::fs::read_to_string(path).expect("the repository has a README")
}

/// The lines of all shell blocks.
fn commands(readme: &str) -> Vec<&str> {
    let blocks = readme.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap_or_default().lines());
    lines
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect()
}

#[test]
fn every_curl_line_of_the_readme_works() {
    if !tools::is_there("curl") {
        return;
    }
    let server = Server::start(&[]);
    let (listen, admin) = (
        server.listen().to_string(),
        server.admin().expect("on").to_string(),
    );
    let readme = readme();
    let mut count = 0;
    for line in commands(&readme) {
        if !line.starts_with("curl ") {
            continue;
        }
        let line = line
            .replace("127.0.0.1:8080", &listen)
            .replace("127.0.0.1:9090", &admin);
        let said = tools::output("sh", &["-c", &line]);
        if line.contains("/v1/inference") {
            let answer: serde_json::Value = serde_json::from_str(&said).expect("JSON");
            assert!(answer["output"].is_string(), "{line}: {said}");
        }
        count += 1;
    }
    assert!(count >= 5, "{count} lines found");
}

#[test]
fn the_key_file_of_the_readme_lets_its_curl_line_in() {
    if !tools::is_there("curl") {
        return;
    }
    let readme = readme();
    let (_, keys) = readme.split_once("```toml\n[[key]]").expect("a key file");
    let (keys, _) = keys.split_once("```").expect("its end");
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("keys.toml");
    std::fs::write(&path, format!("[[key]]{keys}")).expect("writable");
    let path = path.to_str().expect("text");
    let server = Server::start(&["--identity", "keys", "--keys", path]);
    let listen = server.listen().to_string();
    let ask = |line: &str| {
        let line = line.replace("127.0.0.1:8080", &listen);
        let said = tools::output("sh", &["-c", &line]);
        serde_json::from_str::<serde_json::Value>(&said).expect("JSON")
    };
    let (with_key, without): (Vec<&str>, Vec<&str>) = commands(&readme)
        .into_iter()
        .filter(|line| line.starts_with("curl ") && line.contains("/v1/inference"))
        .partition(|line| line.contains("Authorization: Bearer"));
    assert!(ask(with_key[0])["output"].is_string());
    assert_eq!(ask(without[0])["status"], 401);
    // What the screen and the front page say to paste works with the key in its place.
    let welcome = server.get("/").text();
    for text in [server.screen(), welcome] {
        let line = text
            .lines()
            .map(str::trim)
            .find(|line| line.starts_with("curl "));
        let line = line
            .expect("a line to paste")
            .replace("Bearer KEY", "Bearer test");
        assert!(ask(&line)["output"].is_string(), "{line}");
    }
}

#[test]
fn every_start_of_the_readme_is_accepted() {
    let readme = readme();
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "s3cret").expect("written");
    let secret = secret.to_str().expect("a path");
    let workers = folder.path().join("workers.txt");
    std::fs::write(&workers, "http://10.0.0.7:8081\n").expect("written");
    let workers = workers.to_str().expect("a path");
    let mut count = 0;
    for line in commands(&readme) {
        let line = line.split('#').next().unwrap_or_default().trim();
        let Some(rest) = line.strip_prefix("cargo run --release") else {
            continue;
        };
        let flags: Vec<_> = match rest.trim().strip_prefix("--") {
            Some(flags) => flags.split_whitespace().collect(),
            None if rest.is_empty() => Vec::new(),
            // Another program of the workspace.
            None => continue,
        };
        // Files that the reader makes.
        let of_reader = |flag| match flag {
            "secret" => secret,
            "workers.txt" => workers,
            flag => flag,
        };
        let flags: Vec<_> = flags.into_iter().map(of_reader).collect();
        count += 1;
        if let ["worker", "--listen", _, flags @ ..] = &flags[..] {
            // Where the reader has that address.
            let worker = Server::start_worker(flags);
            assert_eq!(worker.get("/v2/health/live").status, 200);
            continue;
        }
        // `check` takes the flags of a server and ends, as does a worker that is told to.
        let ends = flags.contains(&"check") || flags.contains(&"--check");
        let check: &[&str] = if ends { &[] } else { &["check"] };
        let output = run(&[check, &flags[..]].concat());
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{line}: {said}");
    }
    assert!(count >= 2, "{count} lines found");
}

#[test]
fn every_file_that_the_readme_links_to_is_there() {
    let readme = readme();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    for rest in readme.split("](").skip(1) {
        let target = rest.split(')').next().unwrap_or_default();
        let is_file = !target.contains("://") && !target.starts_with('#');
        let path = root.join(target.split('#').next().unwrap_or_default());
        assert!(!is_file || path.exists(), "{target} is not there");
    }
}
