//! Versions of files, and what makes them whole.

use super::*;
use crate::tree::{ROOT, Tree};
use orcheck_io::failpoints::Failpoints;
use orcheck_testing::Scratch;

/// Two files with fixed names, and what knows of them.
fn two() -> (Scratch, Gathered, [Arc<Node>; 2]) {
    let (scratch, points) = (Scratch::new("gathered"), Failpoints::none());
    let root = orcheck_io::disk::Inode::root(scratch.path(), points.clone()).unwrap();
    let tree = Tree::new(root).unwrap();
    let nodes = ["a", "b"].map(|name| {
        std::fs::write(scratch.path().join(name), name).unwrap();
        tree.look_up(&tree.node(ROOT).unwrap(), OsStr::new(name))
            .unwrap()
    });
    let marks = Marks::open(scratch.path(), "j", (0, 1), "now", &points)
        .unwrap()
        .unwrap();
    let patterns = ["a", "b"].map(|name| Pattern::new(name).unwrap()).to_vec();
    let (marks, tell) = (Arc::new(marks), Arc::new(|_: &str| {}));
    (
        scratch,
        Gathered::new((patterns, None), None, marks, tell),
        nodes,
    )
}

fn open(gathered: &Gathered, node: &Node, new: bool) {
    gathered.opens(node);
    gathered.opened(node, new);
}

fn write(gathered: &Gathered, node: &Node) {
    open(gathered, node, true);
    gathered.closed(node, true);
}

fn fresh(gathered: &Gathered) -> u64 {
    let sets = gathered.report(Vec::new(), Vec::new()).sets;
    sets.iter().map(|(_, counted)| counted.fresh).sum()
}

#[test]
fn versions_of_files_with_fixed_names_are_not_mixed() {
    let (_scratch, gathered, [a, b]) = two();
    write(&gathered, &a);
    write(&gathered, &b);
    assert_eq!(fresh(&gathered), 2);
    write(&gathered, &a);
    assert_eq!(fresh(&gathered), 1, "b is of the version before");
    write(&gathered, &b);
    assert_eq!(gathered.begin_to_take(Key::Next).unwrap().len(), 2);
    gathered.stop_taking(Key::Next);
    assert_eq!(fresh(&gathered), 2, "nothing has changed meanwhile");
    // The next version begins while this one should be taken.
    assert_eq!(gathered.begin_to_take(Key::Next).unwrap().len(), 2);
    write(&gathered, &a);
    gathered.stop_taking(Key::Next);
    assert_eq!(fresh(&gathered), 1, "b is of the version before");
    write(&gathered, &b);
    // The next version begins while this one is taken, and is not forgotten.
    assert_eq!(gathered.begin_to_take(Key::Next).unwrap().len(), 2);
    write(&gathered, &a);
    gathered.end_taking(Key::Next, Some(1));
    assert_eq!(fresh(&gathered), 1);
    write(&gathered, &b);
    assert_eq!(fresh(&gathered), 2);
}

#[test]
fn only_writing_from_the_beginning_makes_a_file_whole_again() {
    let (_scratch, gathered, [a, b]) = two();
    open(&gathered, &a, true);
    gathered.closed(&a, false);
    write(&gathered, &b);
    assert_eq!(fresh(&gathered), 1);
    open(&gathered, &a, false);
    gathered.closed(&a, true);
    assert_eq!(fresh(&gathered), 1, "it still has the half of somebody");
    assert!(!gathered.is_clean());
    write(&gathered, &a);
    assert_eq!(fresh(&gathered), 2);
    // Somebody who may not open it changes nothing.
    gathered.opens(&a);
    gathered.not_opened(&a);
    assert_eq!(fresh(&gathered), 2);
    // Two handles: the file is open until the second is closed.
    open(&gathered, &a, true);
    open(&gathered, &a, false);
    gathered.closed(&a, true);
    assert_eq!(gathered.begin_to_take(Key::Next), None);
}
