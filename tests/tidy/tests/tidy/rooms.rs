//! Rooms: the folders of a crate, and which of them import from which.
//!
//! A room is a file directly below `src` together with the folder of its name. Imports between
//! rooms must not lead in a circle, and go through the face of a room: `crate::room::Item`, or
//! `crate::room::module::item` where the room shows a module.
//!
//! Not here: imports that only unit tests have.

use crate::tree::{File, code_of};
use std::collections::{BTreeMap, BTreeSet};

/// From a room to another one, and a place that does it.
type Arrows = BTreeMap<(String, String), String>;

/// The paths that a file of a crate imports or writes out, from the crate's root on; with their
/// lines.
fn paths(code: &str) -> Vec<(usize, Vec<String>)> {
    let mut found = vec![];
    let mut rest = code;
    let mut line = 0;
    while let Some(at) = rest.find("crate::") {
        let before = rest[..at].chars().next_back();
        line += rest[..at].matches('\n').count();
        rest = &rest[at + "crate::".len()..];
        if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == '$') {
            continue;
        }
        let mut path = vec![];
        let mut tail = rest;
        loop {
            let end = tail
                .find(|c: char| !c.is_alphanumeric() && c != '_')
                .unwrap_or(tail.len());
            if end == 0 {
                break;
            }
            path.push(tail[..end].to_owned());
            tail = &tail[end..];
            match tail.strip_prefix("::") {
                Some(more) => tail = more,
                None => break,
            }
        }
        if !path.is_empty() {
            found.push((line, path));
        }
    }
    found
}

/// The crate's folder and the room of a source file; no room for the crate's root.
fn place(file: &File) -> Option<(String, Option<String>)> {
    let (home, inside) = file.path.split_once("/src/")?;
    let inside = inside.strip_suffix(".rs")?;
    if !home.starts_with("crates/") {
        return None;
    }
    let room = inside.split('/').next().unwrap_or_default();
    let room = !["lib", "main"].contains(&room) || inside.contains('/');
    let name = inside.split('/').next().unwrap_or_default().to_owned();
    Some((home.to_owned(), room.then_some(name)))
}

/// Per crate: its arrows between rooms.
pub fn arrows(files: &[File]) -> BTreeMap<String, Arrows> {
    let mut rooms: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for file in files {
        if let Some((home, Some(room))) = place(file) {
            rooms.entry(home).or_default().insert(room);
        }
    }
    let mut all: BTreeMap<String, Arrows> = BTreeMap::new();
    for file in files {
        let Some((home, Some(room))) = place(file) else {
            continue;
        };
        let code = code_of(&file.text);
        let code = code
            .split("#[cfg(test)]\nmod tests {")
            .next()
            .unwrap_or_default();
        for (line, path) in paths(code) {
            let Some(other) = rooms[&home].get(&path[0]).filter(|other| **other != room) else {
                continue;
            };
            let arrows = all.entry(home.clone()).or_default();
            arrows
                .entry((room.clone(), other.clone()))
                .or_insert_with(|| format!("{}:{}", file.path, line + 1));
        }
    }
    all
}

/// Rooms of one crate that can be reached from themselves.
pub fn circles(home: &str, arrows: &Arrows) -> Vec<String> {
    let mut reached: BTreeSet<(&str, &str)> = arrows
        .keys()
        .map(|(from, to)| (from.as_str(), to.as_str()))
        .collect();
    loop {
        let longer: Vec<(&str, &str)> = reached
            .iter()
            .flat_map(|&(from, over)| {
                let next = reached.iter().filter(move |(begin, _)| *begin == over);
                next.map(move |&(_, to)| (from, to))
            })
            .filter(|pair| !reached.contains(pair))
            .collect();
        if longer.is_empty() {
            break;
        }
        reached.extend(longer);
    }
    arrows
        .iter()
        .filter(|((from, to), _)| reached.contains(&(to.as_str(), from.as_str())))
        .map(|((from, to), at)| {
            format!(
                "{at}: {home}: {from} imports from {to}, which imports from {from} again: move what both need into a room \
                 below them"
            )
        })
        .collect()
}
