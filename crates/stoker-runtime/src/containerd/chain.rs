//! The names of unpacked layers: each is the hash of all layers up to it.

use sha2::{Digest as _, Sha256};

/// The chain id of each layer, the base first, from the digests of the uncompressed layers.
pub(crate) fn chain_ids(diff_ids: &[String]) -> Vec<String> {
    let mut chain: Vec<String> = Vec::with_capacity(diff_ids.len());
    for diff_id in diff_ids {
        let id = match chain.last() {
            None => diff_id.clone(),
            Some(below) => {
                let hash = Sha256::digest(format!("{below} {diff_id}").as_bytes());
                format!("sha256:{}", hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>())
            }
        };
        chain.push(id);
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_id_is_the_hash_of_what_is_below_and_the_layer() {
        let ids = chain_ids(&["sha256:aa".into(), "sha256:bb".into()]);
        assert_eq!(ids[0], "sha256:aa");
        // printf 'sha256:aa sha256:bb' | sha256sum
        assert_eq!(ids[1], "sha256:b68ad689d6d1ec110ea1c13617437ad6f3766d4b3b309f6a603a222e07a0164f");
    }
}
