//! Tells all ranks which files each node holds.
//!
//! Not here: what is read from which node (`engine::replicas`).

use crate::collective::{Collective, agree_min, rows};
use orcheck_engine::node::Layout;
use orcheck_engine::replicas::{Files, Holdings};
use orcheck_format::Result;

/// What the lowest rank of each node reports that its node holds. Collective; for each node, every
/// rank receives as many bytes as the longest list has.
pub(crate) fn exchange_holdings(
    collective: &mut dyn Collective,
    layout: &Layout,
    own: Result<Files>,
) -> Result<Holdings> {
    let lines = |(name, len_bytes): &(String, u64)| format!("{name} {len_bytes}\n");
    let text = own.map(|files| files.iter().map(lines).collect::<String>());
    let mut longest = [-(text.as_ref().map_or(0, String::len) as i64)];
    let text = agree_min(collective, text, &mut longest)?;
    let room = longest[0].unsigned_abs() as usize;
    let rank = collective.rank();
    let node = layout.node_of(rank).index();
    let mine = layout.leads_node(rank).then_some((node, text.as_bytes()));
    let table = rows(collective, (layout.nodes.len(), room), mine)?;
    let parse = |part: &[u8]| {
        let text = String::from_utf8_lossy(part);
        let files = text.trim_end_matches('\0').lines().filter_map(|line| {
            let (name, len) = line.split_once(' ')?;
            Some((name.to_owned(), len.parse().ok()?))
        });
        files.collect::<Vec<_>>()
    };
    let mut parts: Holdings = table.chunks_exact(room.max(1)).map(parse).collect();
    parts.resize(layout.nodes.len(), Vec::new());
    Ok(parts)
}
