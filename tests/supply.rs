//! What the package is made of: dependencies with reasons, `unsafe` in one place, no network.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

fn home() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn text(file: &str) -> String {
    std::fs::read_to_string(home().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// All files of the library.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    let paths = entries.map(|entry| entry.expect("an entry").path());
    paths
        .flat_map(|path| {
            if path.is_dir() {
                sources(&path)
            } else {
                vec![path]
            }
        })
        .collect()
}

/// What cargo says of this package and all that it depends on.
fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args(["metadata", "--locked", "--offline", "--format-version", "1"])
        .current_dir(home())
        .output()
        .expect("cargo");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key]
        .as_array()
        .unwrap_or_else(|| panic!("no list {key}"))
}

#[test]
fn every_dependency_has_a_reason() {
    let metadata = metadata();
    let own = list(&metadata, "packages")
        .iter()
        .find(|p| p["name"] == "dualtape")
        .expect("us");
    let mut named: Vec<&str> = list(own, "dependencies")
        .iter()
        .map(|d| d["name"].as_str().expect("a name"))
        .collect();
    let page = text("docs/dependencies.md");
    let mut listed: Vec<&str> = page
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(name, _)| name)
        .collect();
    named.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, named);
    // No script of ours runs when somebody builds.
    let kinds = list(own, "targets")
        .iter()
        .flat_map(|target| list(target, "kind"));
    assert!(kinds.into_iter().all(|kind| kind != "custom-build"));
}

#[test]
fn everything_comes_from_one_registry_and_runs_on_the_declared_rust() {
    let metadata = metadata();
    let version = |text: &str| -> Vec<u32> {
        text.split('.')
            .map(|part| part.parse().expect("a number"))
            .chain([0, 0])
            .take(3)
            .collect()
    };
    let packages = list(&metadata, "packages");
    let own = packages
        .iter()
        .find(|p| p["name"] == "dualtape")
        .expect("us");
    let declared = version(own["rust_version"].as_str().expect("a version"));
    for package in packages {
        let name = &package["name"];
        if let Some(source) = package["source"].as_str() {
            assert_eq!(
                source, "registry+https://github.com/rust-lang/crates.io-index",
                "{name}"
            );
        }
        if let Some(needs) = package["rust_version"].as_str() {
            assert!(version(needs) <= declared, "{name} needs Rust {needs}");
        }
        // Nothing that talks to others, not even to be tested.
        let talks = [
            "reqwest", "hyper", "ureq", "curl", "tokio", "openssl", "rustls", "mio", "socket2",
        ];
        assert!(!talks.contains(&name.as_str().expect("a name")), "{name}");
    }
    println!("{} packages", packages.len());
}

#[test]
fn unsafe_is_in_one_file_and_nothing_opens_a_connection() {
    let mut blocks = 0;
    for path in sources(&home().join("src")) {
        let code = std::fs::read_to_string(&path).expect("a source");
        let mut argued = false;
        for (number, line) in code.lines().enumerate() {
            let place = format!("{}:{}", path.display(), number + 1);
            argued |= line.contains("SAFETY:");
            for word in ["std::net", "TcpStream", "UdpSocket", "process::Command"] {
                assert!(!line.contains(word), "{place}: {word}");
            }
            let is_code = !line.trim_start().starts_with("//");
            if is_code
                && line
                    .split(|c: char| !c.is_alphanumeric())
                    .any(|word| word == "unsafe")
            {
                assert!(path.ends_with("src/kernel/gemm.rs"), "{place}: unsafe");
                assert!(argued, "{place}: unsafe without an argument");
                blocks += 1;
            }
        }
    }
    assert_eq!(blocks, 2, "SECURITY.md counts them");
}
