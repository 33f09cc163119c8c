//! Descriptions of clusters that are not this machine: `128x8xH100`, or a file with nodes, devices and links.

use std::borrow::Cow;
use std::fmt;

use serde::de::{self, MapAccess, Visitor, value::MapAccessDeserializer};
use serde::{Deserialize, Deserializer};

use runner_spec::cluster::{ClusterFacts, ComputeCapability, Device, DeviceFacts, PeakFlops};
use runner_spec::error::{Classified, ErrorKind};
use runner_spec::rates::{AcceleratorRates, DeviceRates, Link, Links, PerPrecision, Rates};
use runner_yaml::document;

/// The largest number of devices: a plan has fewer ranks.
const MAX_DEVICES: usize = 1 << 20;

/// The share of the memory bandwidth that a pass over memory is assumed to reach, unless a cluster file gives another.
const MEMORY_EFFICIENCY: f64 = 0.8;

/// The share of the peak that matrix products are assumed to reach where none is given.
const PRODUCT_EFFICIENCY: PerPrecision<f64> = PerPrecision::all(0.6);

/// Chosen so that GPT-2 124M in bf16, micro-batches of 64 rows of 1,024, takes what llm.c measured on 8 A100s: 218k tokens/s per GPU.
const A100_EFFICIENCY: PerPrecision<f64> = PerPrecision::all(0.78);

/// Chosen so that GPT-2 124M, 64 rows of 1,024, takes what this program measured on an H100 in each precision (docs/gpu-check.md).
const H100_EFFICIENCY: PerPrecision<f64> = PerPrecision { fp32: 0.723, tf32: 0.474, bf16: 0.739 };

/// The error of a description that is not a cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ClusterError {
    #[error("cluster {given}: expected NODESxDEVICESxGPU, for example `16x8xH100`, or a file")]
    Form { given: String },
    #[error("cluster: unknown device `{given}`; use one of {}, or describe it in a cluster file", known_names())]
    Unknown { given: String },
    #[error("cluster: the number of devices must be 1 to {MAX_DEVICES}, got {nodes} nodes of {devices} devices")]
    Size { nodes: usize, devices: usize },
    #[error("{0}")]
    File(String),
}

impl Classified for ClusterError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Request
    }
}

/// A device by its numbers: dense rates without sparsity, from a data sheet or a cluster file.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSheet {
    pub name: Cow<'static, str>,
    /// Bytes as sold (10^9).
    #[serde(deserialize_with = "positive")]
    memory: f64,
    /// FLOP/s.
    #[serde(with = "FilePeaks")]
    pub peak_flops: PeakFlops,
    /// Bytes/s.
    #[serde(deserialize_with = "positive")]
    memory_bandwidth: f64,
    #[serde(default = "assumed_product_efficiency", deserialize_with = "same_share")]
    product_efficiency: PerPrecision<f64>,
    #[serde(default = "assumed_memory_efficiency", deserialize_with = "share")]
    memory_efficiency: f64,
    /// `None` for a device in a file, as are `links`.
    #[serde(skip)]
    capability: Option<ComputeCapability>,
    #[serde(skip)]
    pub links: Option<Links>,
}

/// Memory, peaks and bandwidths are the vendor's, from the data sheets of V100 SXM2 32 GB, A100 SXM4 40 GB and 80 GB, H100
/// SXM5, H200 SXM, DGX B200 (an eighth of it), L40S and GeForce RTX 4090 (Ada whitepaper: bf16 with fp32 accumulation).
/// `within`: half of the NVLink rate that data sheets add up over both directions; PCIe 4.0 x16 where there is none.
/// `between`: the adapters of DGX-1 V100 (4 of 100 Gb/s), DGX A100 (8 of 200), DGX H100, H200 and B200 (8 of 400); for
/// L40S 2 of 200 Gb/s and for RTX 4090 one of 100 are assumed.
///
/// Devices other than A100 and H100 have the efficiency of the nearest of the two.
pub static KNOWN_DEVICES: [DataSheet; 8] = [
    device("V100", (7, 0), 32e9, [15.7e12, 0.0, 0.0], 900e9, A100_EFFICIENCY, [150e9, 50e9]),
    device("A100-40GB", (8, 0), 40e9, [19.5e12, 156e12, 312e12], 1555e9, A100_EFFICIENCY, [300e9, 200e9]),
    device("A100", (8, 0), 80e9, [19.5e12, 156e12, 312e12], 2039e9, A100_EFFICIENCY, [300e9, 200e9]),
    device("H100", (9, 0), 80e9, [67e12, 494.7e12, 989.4e12], 3350e9, H100_EFFICIENCY, [450e9, 400e9]),
    device("H200", (9, 0), 141e9, [67e12, 494.7e12, 989.4e12], 4800e9, H100_EFFICIENCY, [450e9, 400e9]),
    device("B200", (10, 0), 180e9, [75e12, 1125e12, 2250e12], 8000e9, H100_EFFICIENCY, [900e9, 400e9]),
    device("L40S", (8, 9), 48e9, [91.6e12, 183e12, 362e12], 864e9, H100_EFFICIENCY, [32e9, 50e9]),
    device("RTX4090", (8, 9), 24e9, [82.6e12, 82.6e12, 165.2e12], 1008e9, A100_EFFICIENCY, [32e9, 12.5e9]),
];

/// Seconds until the first byte of a message arrives.
const WITHIN_LATENCY: f64 = 5e-6;
const BETWEEN_LATENCY: f64 = 15e-6;

/// `peaks` are those of fp32, tf32 and bf16, 0 for a precision that the device lacks. `within` and `between` are bytes/s in one
/// direction: to a device of the same node, and of a whole node to others.
const fn device(
    name: &'static str,
    (major, minor): (u32, u32),
    memory: f64,
    [fp32, tf32, bf16]: [f64; 3],
    memory_bandwidth: f64,
    product_efficiency: PerPrecision<f64>,
    [within, between]: [f64; 2],
) -> DataSheet {
    DataSheet {
        name: Cow::Borrowed(name),
        memory,
        peak_flops: PeakFlops { fp32: known_peak(fp32), tf32: known_peak(tf32), bf16: known_peak(bf16) },
        memory_bandwidth,
        product_efficiency,
        memory_efficiency: MEMORY_EFFICIENCY,
        capability: Some(ComputeCapability { major, minor }),
        links: Some(Links { within: link(within, WITHIN_LATENCY), between: link(between, BETWEEN_LATENCY) }),
    }
}

const fn known_peak(flops: f64) -> Option<f64> {
    if flops > 0.0 { Some(flops) } else { None }
}

const fn link(bytes_per_second: f64, latency: f64) -> Link {
    Link { bytes_per_second, latency, copied_by_ranks: false, sum_bytes_per_second: None }
}

fn known_names() -> String {
    KNOWN_DEVICES.iter().map(|device| device.name.as_ref()).collect::<Vec<_>>().join(", ")
}

fn data_sheet_by_name(name: &str) -> Result<&'static DataSheet, ClusterError> {
    let found = KNOWN_DEVICES.iter().find(|device| device.name.eq_ignore_ascii_case(name));
    found.ok_or_else(|| ClusterError::Unknown { given: name.to_owned() })
}

/// The cluster `16x8xH100`: 16 nodes of 8 known devices.
///
/// # Errors
/// If it is written differently, or the device is unknown.
pub fn named_cluster(text: &str) -> Result<ClusterFacts, ClusterError> {
    let form = || ClusterError::Form { given: text.to_owned() };
    let mut parts = text.splitn(3, ['x', 'X']);
    let (Some(nodes), Some(devices), Some(name)) = (parts.next(), parts.next(), parts.next()) else {
        return Err(form());
    };
    let number = |text: &str| text.trim().parse::<usize>().map_err(|_| form());
    let (nodes, devices) = (number(nodes)?, number(devices)?);
    let known = data_sheet_by_name(name.trim())?;
    cluster(nodes, devices, known, known.links)
}

/// The cluster that the YAML `text` describes.
///
/// # Errors
/// If it is not of that form: with its line and column.
pub fn cluster_from_yaml(text: &str) -> Result<ClusterFacts, ClusterError> {
    let file: ClusterFile = document::from_str(text).map_err(|e| ClusterError::File(e.to_string()))?;
    let links = file.links.map(|links| Links { within: links.within, between: links.between }).or(file.device.links);
    if links.is_none() {
        let why = "links: missing; they are required if a device is given by its numbers";
        return Err(ClusterError::File(why.to_owned()));
    }
    cluster(file.nodes, file.devices_per_node, &file.device, links)
}

fn cluster(
    nodes: usize,
    devices: usize,
    sheet: &DataSheet,
    links: Option<Links>,
) -> Result<ClusterFacts, ClusterError> {
    if nodes == 0 || devices == 0 || nodes.checked_mul(devices).is_none_or(|all| all > MAX_DEVICES) {
        return Err(ClusterError::Size { nodes, devices });
    }
    let one = |node: usize, index: usize| DeviceFacts {
        device: Device::Cuda(index),
        node,
        name: sheet.name.to_string(),
        threads: 1,
        memory_bytes: Some(sheet.memory as u64),
        memory_limited_by: None,
        peak_flops: sheet.peak_flops,
        compute_capability: sheet.capability,
        estimated: false,
    };
    let devices = (0..nodes).flat_map(|node| (0..devices).map(move |index| one(node, index))).collect();
    let rates = [(sheet.name.to_string(), DeviceRates::Accelerator(sheet.rates()))].into();
    let rates = Rates { devices: rates, links, gpu_links: None };
    Ok(ClusterFacts { devices, rates, ..ClusterFacts::default() })
}

impl DataSheet {
    pub fn rates(&self) -> AcceleratorRates {
        let Self { memory_bandwidth, product_efficiency, memory_efficiency, .. } = *self;
        AcceleratorRates { memory_bandwidth, product_efficiency, memory_efficiency }
    }
}

/// The assumed rates of a device without a data sheet.
pub fn assumed_rates(memory_bandwidth: f64) -> AcceleratorRates {
    let (product_efficiency, memory_efficiency) = (PRODUCT_EFFICIENCY, MEMORY_EFFICIENCY);
    AcceleratorRates { memory_bandwidth, product_efficiency, memory_efficiency }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ClusterFile {
    nodes: usize,
    devices_per_node: usize,
    #[serde(deserialize_with = "name_or_numbers")]
    device: DataSheet,
    links: Option<FileLinks>,
}

#[derive(Deserialize)]
#[serde(remote = "PeakFlops", deny_unknown_fields)]
struct FilePeaks {
    #[serde(default, deserialize_with = "optional_positive")]
    fp32: Option<f64>,
    #[serde(default, deserialize_with = "optional_positive")]
    tf32: Option<f64>,
    #[serde(default, deserialize_with = "optional_positive")]
    bf16: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct FileLinks {
    #[serde(with = "FileLink")]
    within: Link,
    #[serde(with = "FileLink")]
    between: Link,
}

/// Bytes/s in one direction (between nodes: of a node's adapters together), and seconds.
#[derive(Deserialize)]
#[serde(remote = "Link", deny_unknown_fields)]
struct FileLink {
    #[serde(rename = "bandwidth", deserialize_with = "positive")]
    bytes_per_second: f64,
    #[serde(deserialize_with = "positive")]
    latency: f64,
    #[serde(skip)]
    copied_by_ranks: bool,
    #[serde(skip)]
    sum_bytes_per_second: Option<f64>,
}

fn assumed_product_efficiency() -> PerPrecision<f64> {
    PRODUCT_EFFICIENCY
}

fn assumed_memory_efficiency() -> f64 {
    MEMORY_EFFICIENCY
}

/// Reads a number, or a text that is one, since YAML reads `450e9` as a text.
fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    // With a visitor of its own, the error has the place of the number.
    struct Number;
    impl Visitor<'_> for Number {
        type Value = f64;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a positive number")
        }
        fn visit_f64<E: de::Error>(self, x: f64) -> Result<f64, E> {
            if x.is_finite() && x > 0.0 { Ok(x) } else { Err(E::custom(format!("must be a positive number, got {x}"))) }
        }
        fn visit_u64<E: de::Error>(self, x: u64) -> Result<f64, E> {
            self.visit_f64(x as f64)
        }
        fn visit_i64<E: de::Error>(self, x: i64) -> Result<f64, E> {
            self.visit_f64(x as f64)
        }
        fn visit_str<E: de::Error>(self, text: &str) -> Result<f64, E> {
            let number = text.replace('_', "").parse();
            self.visit_f64(number.map_err(|_| E::custom(format!("expected a number, found {text}")))?)
        }
    }
    deserializer.deserialize_any(Number)
}

fn optional_positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    positive(deserializer).map(Some)
}

fn share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let x = positive(deserializer)?;
    if x <= 1.0 { Ok(x) } else { Err(de::Error::custom(format!("must be at most 1, got {x}"))) }
}

/// Reads the share of all precisions.
fn same_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<PerPrecision<f64>, D::Error> {
    share(deserializer).map(PerPrecision::all)
}

/// Reads the name of a known device, or the numbers of one.
fn name_or_numbers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<DataSheet, D::Error> {
    struct NameOrNumbers;
    impl<'de> Visitor<'de> for NameOrNumbers {
        type Value = DataSheet;
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the name of a known device, or its numbers")
        }
        fn visit_str<E: de::Error>(self, name: &str) -> Result<DataSheet, E> {
            data_sheet_by_name(name).cloned().map_err(E::custom)
        }
        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<DataSheet, A::Error> {
            DataSheet::deserialize(MapAccessDeserializer::new(map))
        }
    }
    deserializer.deserialize_any(NameOrNumbers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_nodes_devices_and_a_device() {
        let cluster = named_cluster("2x4xh100").expect("known");
        assert_eq!(cluster.devices.len(), 8);
        let last = &cluster.devices[7];
        assert_eq!((last.node, last.device, last.name.as_str()), (1, Device::Cuda(3), "H100"));
        assert!(cluster.rates.devices.contains_key("H100"));
        // The x of RTX is not a separator.
        assert_eq!(named_cluster("1x1xRTX4090").expect("known").devices[0].name, "RTX4090");
    }

    #[test]
    fn every_known_device_can_be_named() {
        for device in &KNOWN_DEVICES {
            assert!(named_cluster(&format!("1x1x{}", device.name)).is_ok());
        }
    }

    #[test]
    fn wrong_names_are_explained() {
        let fails = |text: &str| named_cluster(text).expect_err("no cluster").to_string();
        insta::assert_snapshot!(fails("8xH100"));
        insta::assert_snapshot!(fails("1x8xH1000"));
        insta::assert_snapshot!(fails("0x8xH100"));
        insta::assert_snapshot!(fails("99999999x8xH100"));
    }

    const OWN: &str = "nodes: 2\ndevices_per_node: 4\ndevice:\n  name: Own\n  memory: 64e9\n  peak_flops: {bf16: 500e12}\n  \
                       memory_bandwidth: 2e12\nlinks:\n  within: {bandwidth: 200e9, latency: 5e-6}\n  between: {bandwidth: \
                       100e9, latency: 1e-5}\n";

    #[test]
    fn a_file_gives_a_known_device_or_numbers() {
        let cluster = cluster_from_yaml("nodes: 1\ndevices_per_node: 8\ndevice: A100\n").expect("known");
        assert_eq!(cluster, named_cluster("1x8xA100").expect("known"));
        let cluster = cluster_from_yaml(OWN).expect("numbers");
        assert_eq!(cluster.devices[4].peak_flops, PeakFlops { bf16: Some(5e14), ..PeakFlops::default() });
        assert_eq!(cluster.rates.links.expect("given").between.bytes_per_second, 1e11);
    }

    #[test]
    fn mistakes_of_a_file_have_their_place() {
        let fails = |text: &str| cluster_from_yaml(text).expect_err("no cluster").to_string();
        insta::assert_snapshot!(fails("nodes: 1\ndevices_per_node: 8\ndevice: H1000\n"));
        insta::assert_snapshot!(fails("nodes: 1\ndevices_per_node: 8\ngpus: H100\n"));
        insta::assert_snapshot!(fails("nodes: 0\ndevices_per_node: 8\ndevice: H100\n"));
        insta::assert_snapshot!(fails("nodes: 1\ndevice: H100\n"));
        insta::assert_snapshot!(fails(&OWN.replace("64e9", "lots")));
        insta::assert_snapshot!(fails(&OWN.replace("2e12", "-1")));
        insta::assert_snapshot!(fails(OWN.split("links").next().expect("before")));
    }
}
