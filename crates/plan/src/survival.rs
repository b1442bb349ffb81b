//! Survival: how likely a job can be restarted after nodes were lost.
//!
//! What it does: gives the probability that after the loss of nodes chosen at random no node's part is gone, when every
//! node keeps its own part and k others, drawn independently, keep replicas.
//! How: a part is gone when its owner and all its holders are lost. Of f lost nodes each has lost its replicas with
//! probability C(f−1, k) / C(n−1, k), which is what Table 1 of Walters and Chaudhary (HiPC 2007) counts.
//!
//! Invariants:
//! 1. The result is a probability; it is 1 for at most k lost nodes and does not grow with the number lost.
//!
//! Not here: who holds what (`orcheck-redundancy`), nodes that fail together, how often nodes fail.

use orcheck_format::{Error, Result};

/// Probability that nothing is lost with `lost` of `nodes` nodes when each part has `replicas` replicas.
///
/// The lost nodes are taken as independent of each other, as the source does: their replicas may be the same nodes, so
/// that this is an approximation, exact for one node and close otherwise.
///
/// # Errors
/// Invalid for no node, more replicas than other nodes, or more lost nodes than there are.
pub fn survival(nodes: u32, replicas: u32, lost: u32) -> Result<f64> {
    if nodes == 0 || replicas >= nodes || lost > nodes {
        return Err(Error::invalid(format!(
            "survival of {lost} lost nodes of {nodes} with {replicas} replicas: expected at least one node, fewer replicas than nodes, and at most all nodes lost"
        )));
    }
    let Some(others) = lost.checked_sub(1) else {
        return Ok(1.0);
    };
    let gone: f64 = (0..replicas)
        .map(|i| f64::from(others.saturating_sub(i)) / f64::from(nodes - 1 - i))
        .product();
    Ok((1.0 - gone).powf(f64::from(lost)))
}
