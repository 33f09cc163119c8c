//! The NUMA nodes of this machine.
//!
//! A page of memory is allocated on the node of the thread that writes to it first. So the memory of a rank whose threads are bound to
//! one node is on that node.

use std::fs;
use std::io;
use std::path::Path;

use crate::host::allowed_core_list;

/// The folder in which Linux describes the nodes.
const NODES: &str = "/sys/devices/system/node";

/// The nodes of this machine: for each, the numbers of those of its cores that this process may use. A node without any is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NumaNodes(Vec<Vec<usize>>);

impl NumaNodes {
    /// Empty where the kernel does not describe nodes.
    pub fn detect() -> Self {
        let allowed = allowed_core_list().and_then(|list| parse_list(&list));
        allowed.map_or_else(Self::default, |allowed| Self::read(Path::new(NODES), &allowed))
    }

    fn read(folder: &Path, allowed: &[usize]) -> Self {
        let Ok(entries) = fs::read_dir(folder) else { return Self::default() };
        let node_of = |entry: io::Result<fs::DirEntry>| {
            let entry = entry.ok()?;
            let number: usize = entry.file_name().to_str()?.strip_prefix("node")?.parse().ok()?;
            let cores = parse_list(&fs::read_to_string(entry.path().join("cpulist")).ok()?)?;
            Some((number, cores.into_iter().filter(|core| allowed.contains(core)).collect::<Vec<_>>()))
        };
        let mut nodes: Vec<_> = entries.filter_map(node_of).filter(|(_, cores)| !cores.is_empty()).collect();
        nodes.sort_unstable();
        Self(nodes.into_iter().map(|(_, cores)| cores).collect())
    }

    /// The number of nodes.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// The number of cores of all nodes.
    pub fn core_count(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    /// The cores of rank `rank` of the `ranks` that share this machine. Ranks next to each other share a node if there are more ranks
    /// than nodes, and a rank has nodes next to each other if there are fewer.
    pub fn cores_of_rank(&self, rank: usize, ranks: usize) -> Vec<usize> {
        let nodes = self.0.len();
        let first = rank * nodes / ranks.max(1);
        let end = ((rank + 1) * nodes / ranks.max(1)).max(first + 1);
        self.0.iter().take(end).skip(first).flatten().copied().collect()
    }
}

/// The numbers of a list in the form of the kernel, such as `0-3,8`; `None` if it has another form.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let parts = text.trim().split(',').filter(|part| !part.is_empty());
    let ranges = parts.map(|part| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse().ok()?)
    });
    Some(ranges.collect::<Option<Vec<_>>>()?.into_iter().flatten().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(lists: &[(&str, &str)], allowed: &str) -> NumaNodes {
        let folder = tempfile::tempdir().unwrap();
        for (name, list) in lists {
            fs::create_dir(folder.path().join(name)).unwrap();
            fs::write(folder.path().join(name).join("cpulist"), list).unwrap();
        }
        fs::write(folder.path().join("online"), "0-1\n").unwrap();
        NumaNodes::read(folder.path(), &parse_list(allowed).unwrap())
    }

    #[test]
    fn nodes_have_the_cores_that_the_process_may_use() {
        // Numbers of hyperthreads follow those of all first threads; node 2 has memory alone.
        let lists = [("node10", "6-7\n"), ("node0", "0-1,8-9\n"), ("node1", "2-3,10-11\n"), ("node2", "\n")];
        assert_eq!(nodes(&lists, "0-11"), NumaNodes(vec![vec![0, 1, 8, 9], vec![2, 3, 10, 11], vec![6, 7]]));
        assert_eq!(nodes(&lists, "1,2-3\n"), NumaNodes(vec![vec![1], vec![2, 3]]));
        assert_eq!(nodes(&lists, "1,2-3").core_count(), 3);
        assert_eq!(nodes(&[], "0-3"), NumaNodes::default());
        assert_eq!(NumaNodes::read(Path::new("/nothing/here"), &[0]).count(), 0);
        assert_eq!([parse_list("0-x"), parse_list("a")], [None, None]);
    }

    #[test]
    fn ranks_share_nodes_or_nodes_a_rank() {
        let nodes = NumaNodes(vec![vec![0, 1], vec![2, 3]]);
        let cores = |ranks| (0..ranks).map(|rank| nodes.cores_of_rank(rank, ranks)).collect::<Vec<_>>();
        assert_eq!(cores(1), [[0, 1, 2, 3]]);
        assert_eq!(cores(2), [[0, 1], [2, 3]]);
        assert_eq!(cores(3), [[0, 1], [0, 1], [2, 3]]);
        assert_eq!(cores(4), [[0, 1], [0, 1], [2, 3], [2, 3]]);
        assert!(NumaNodes::default().cores_of_rank(0, 2).is_empty());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn nodes_of_this_machine_have_the_cores_of_this_process() {
        let allowed = parse_list(&allowed_core_list().unwrap()).unwrap();
        let nodes = NumaNodes::detect();
        assert!(nodes.count() == 0 || nodes.cores_of_rank(0, 1).contains(allowed.last().unwrap()), "{nodes:?}");
    }
}
