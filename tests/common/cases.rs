//! Every layer as a scalar function L of its parameters and input, with its explicit backward: checked against finite
//! differences in `gradients.rs` and against candle's autograd in `autograd.rs`.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use candle_core::Tensor;
use runner_compute::kernels::embedding::sinusoids;
use runner_compute::kernels::loss::LossOptions;
use runner_compute::kernels::pointwise::Rope;
use runner_compute::model::{Model, Params};
use runner_compute::nn::{
    Attention, BackwardPass, DeferredGradients, DropoutSite, Embedding, ForwardPass, GradientSink, Head, LayerPart,
    Linear, MicroBatch, Mlp, Norm, Positions, Sublayer, Sums, TransformerLayer,
};
use runner_spec::data::IGNORED_TARGET;
use runner_spec::experiment::{Activation, NormPlace, PositionKind, Recompute};
use runner_spec::model::{Heads, Mask, ModelOptions, ModelSpec, ParamSpec, RopeScaling, Rotary};

use super::{
    WholePasses as _, below, micro_batch, normals, oracle, random, random_params, small_encoder, small_gpt2,
    small_llama, spec, values,
};

/// The layer under test, with its rotary positions.
#[expect(clippy::large_enum_variant, reason = "a test has a few of them")]
pub enum Layer {
    Linear(Linear),
    /// With `skip`, L also has the term of a residual stream past the norm.
    Norm {
        norm: Norm,
        skip: bool,
    },
    Attention(Attention, Option<Rotary>),
    Mlp(Mlp),
    Embedding(Embedding),
    Head(Head),
    Transformer(TransformerLayer, Option<Rotary>),
    Model(Box<Model>),
}

/// L = Σ r·y with random r; for heads and models, L = scale · Σ losses.
pub struct Case {
    pub name: String,
    pub layer: Layer,
    pub params: Params,
    /// None for layers whose input is ids.
    pub x: Option<Tensor>,
    pub mb: MicroBatch,
}

/// A value of L, and the sum of its terms' magnitudes, which its rounding error is proportional to.
pub struct Loss {
    pub value: f64,
    pub magnitude: f64,
}

impl Case {
    fn input(x: Option<&Tensor>) -> &Tensor {
        x.unwrap()
    }

    /// The layer's output; logits for heads and models.
    pub fn output(&self, params: &Params, x: Option<&Tensor>) -> Tensor {
        let mb = &self.mb;
        let pass = ForwardPass::new(params, mb);
        match &self.layer {
            Layer::Linear(l) => l.forward(pass, Self::input(x)).unwrap(),
            Layer::Norm { norm, .. } => norm.forward(pass, Self::input(x)).unwrap().0,
            Layer::Attention(a, _) => a.forward(pass, Self::input(x)).unwrap().0,
            Layer::Mlp(m) => m.forward(pass, Self::input(x)).unwrap().0,
            Layer::Embedding(e) => e.forward(pass, 0).unwrap(),
            Layer::Head(h) => {
                let rows: Vec<usize> = (0..mb.batch * mb.seq).collect();
                h.logits(pass, Self::input(x), &rows).unwrap()
            }
            Layer::Transformer(t, _) => t.forward(pass, Self::input(x).clone()).unwrap().0,
            Layer::Model(m) => m.logits(params, mb).unwrap(),
        }
    }

    fn is_loss(&self) -> bool {
        matches!(self.layer, Layer::Head(_) | Layer::Model(_))
    }

    fn has_skip(&self) -> bool {
        matches!(self.layer, Layer::Norm { skip: true, .. })
    }

    fn weights(&self, shape: (usize, usize)) -> Tensor {
        random(&format!("weights of {}", self.name), shape, 1.0)
    }

    fn skip(&self) -> Tensor {
        random(&format!("skip of {}", self.name), Self::input(self.x.as_ref()).dims2().unwrap(), 1.0)
    }

    /// L, in f64 throughout.
    pub fn loss(&self, params: &Params, x: Option<&Tensor>) -> Loss {
        let y = self.output(params, x);
        let shape = y.dims2().unwrap();
        let y = values(&y);
        let mut terms = Vec::new();
        if self.is_loss() {
            for (row, &target) in y.chunks_exact(shape.1).zip(&self.mb.targets) {
                if target != IGNORED_TARGET {
                    let top = row.iter().copied().fold(f64::MIN, f64::max);
                    let total: f64 = row.iter().map(|v| (v - top).exp()).sum();
                    terms.push(self.mb.scale * (total.ln() + top - row[target as usize]));
                }
            }
        } else {
            terms.extend(values(&self.weights(shape)).iter().zip(&y).map(|(r, y)| r * y));
            if self.has_skip() {
                terms.extend(values(&self.skip()).iter().zip(values(Self::input(x))).map(|(s, x)| s * x));
            }
        }
        Loss { value: terms.iter().sum(), magnitude: terms.iter().map(|t| t.abs()).sum() }
    }

    /// dL/dx and dL/dparams by the explicit backward, which gives the same bits in one pass and split into the input's and
    /// the weights' gradients. The gradients are added into a buffer that is not empty, as in gradient accumulation.
    pub fn gradients(&self) -> (Option<Vec<f64>>, Vec<f64>) {
        let before = normals("gradients of an earlier micro-batch", self.params.layout.total);
        let grads = || super::with_values(&self.params.layout, before.clone(), candle_core::DType::F64);
        let (once, split) = (grads(), grads());
        let (dx, _) = self.backward(GradientSink::Add(&once));
        let (split_dx, tasks) = self.backward(GradientSink::Defer(Vec::new()));
        assert_eq!(dx, split_dx, "{}: dx by the split backward", self.name);
        assert_eq!(values(&split.flat), before, "{}: the input pass leaves the gradients alone", self.name);
        for task in tasks {
            task.run(&split).unwrap();
        }
        if !matches!(self.layer, Layer::Model(_)) {
            assert_eq!(values(&once.flat), values(&split.flat), "{}: gradients by the split backward", self.name);
        }
        (dx, values(&once.flat).iter().zip(&before).map(|(after, before)| after - before).collect())
    }

    /// Whole models are split in other ways, which `stages.rs` compares.
    fn backward(&self, grads: GradientSink<'_>) -> (Option<Vec<f64>>, DeferredGradients) {
        let (params, mb) = (&self.params, &self.mb);
        let forward = ForwardPass::new(params, mb);
        let pass = &mut BackwardPass::new(params, mb, grads);
        let x = self.x.as_ref();
        let dx = match &self.layer {
            Layer::Model(m) => {
                let (_, saved) = m.forward_losses(params, mb);
                match &pass.grads {
                    GradientSink::Add(grads) => m.backward(params, grads, saved, None, mb).unwrap(),
                    GradientSink::Defer(_) => m.backward_input(params, saved, None, mb).unwrap().0.map(|dx| dx.x),
                }
            }
            Layer::Head(h) => {
                let (_, saved) = h.forward(forward, Self::input(x).clone()).unwrap();
                Some(h.backward(pass, saved).unwrap().tensor)
            }
            layer => {
                let dy = self.weights(self.output(params, x).dims2().unwrap());
                match layer {
                    Layer::Linear(l) => Some(l.backward(pass, Self::input(x), &dy.into()).unwrap()),
                    Layer::Norm { norm, skip } => {
                        let skip = skip.then(|| self.skip());
                        let (_, stats) = norm.forward(forward, Self::input(x)).unwrap();
                        let x = Self::input(x);
                        Some(norm.backward(pass, x, &stats, &dy, skip.as_ref()).unwrap().tensor)
                    }
                    Layer::Attention(a, _) => {
                        let (_, saved) = a.forward(forward, Self::input(x)).unwrap();
                        Some(a.backward(pass, Self::input(x), Some(saved), &dy.into()).unwrap())
                    }
                    Layer::Mlp(m) => {
                        let (_, saved) = m.forward(forward, Self::input(x)).unwrap();
                        Some(m.backward(pass, Self::input(x), saved, &dy.into()).unwrap())
                    }
                    Layer::Embedding(e) => {
                        e.backward(pass, &dy.into()).unwrap();
                        None
                    }
                    Layer::Transformer(t, _) => {
                        let (_, saved) = t.forward(forward, Self::input(x).clone()).unwrap();
                        Some(t.backward(pass, saved, &dy.into()).unwrap().tensor)
                    }
                    Layer::Head(_) | Layer::Model(_) => unreachable!("handled above"),
                }
            }
        };
        let tasks = match &mut pass.grads {
            GradientSink::Add(_) => Vec::new(),
            GradientSink::Defer(tasks) => std::mem::take(tasks),
        };
        (dx.map(|dx| values(&dx)), tasks)
    }

    /// The layer's output in plain candle operations.
    pub fn oracle_output(&self, params: &Params, x: Option<&Tensor>) -> Tensor {
        let mb = &self.mb;
        match &self.layer {
            Layer::Linear(l) => oracle::linear(l, params, Self::input(x)),
            Layer::Norm { norm, .. } => oracle::norm(norm, params, Self::input(x)),
            Layer::Attention(a, rotary) => oracle::attention(a, *rotary, params, Self::input(x), mb),
            Layer::Mlp(m) => oracle::mlp(m, params, Self::input(x), mb),
            Layer::Embedding(e) => oracle::embedding(e, params, mb),
            Layer::Head(h) => oracle::head(h, params, Self::input(x)),
            Layer::Transformer(t, rotary) => oracle::layer(t, *rotary, params, Self::input(x), mb),
            Layer::Model(m) => oracle::model(&m.spec, params, mb),
        }
    }

    /// L of that output, differentiable.
    pub fn oracle_loss(&self, y: &Tensor, x: Option<&Tensor>) -> Tensor {
        if self.is_loss() {
            return oracle::cross_entropy(y, &self.mb.targets, self.mb.scale);
        }
        let mut total = (y * self.weights(y.dims2().unwrap())).unwrap().sum_all().unwrap();
        if self.has_skip() {
            total = (total + (Self::input(x) * self.skip()).unwrap().sum_all().unwrap()).unwrap();
        }
        total
    }
}

/// Rows of ids with repetitions, targets with every fifth ignored, and dropout on where a layer has any.
fn batch(batch: usize, seq: usize, vocab: usize) -> MicroBatch {
    let ids = below("ids", batch * seq, vocab);
    let mut targets = below("targets", batch * seq, vocab);
    targets.iter_mut().step_by(5).for_each(|t| *t = IGNORED_TARGET);
    let mut mb = micro_batch(&ids, targets, seq);
    (mb.training, mb.step, mb.first_sample, mb.scale) = (true, 3, 5, 0.37);
    mb
}

fn case(name: &str, layer: impl FnOnce(&Params) -> Layer, specs: Vec<ParamSpec>, d: usize, mb: MicroBatch) -> Case {
    let params = random_params(specs, 0.4);
    let x = (d > 0).then(|| random(name, (mb.batch * mb.seq, d), 1.0));
    Case { name: name.into(), layer: layer(&params), params, x, mb }
}

fn index(params: &Params, name: &str) -> usize {
    params.layout.index(name).unwrap()
}

fn single(params: &Params, name: &str, bias: bool) -> Linear {
    let bias = bias.then(|| index(params, &format!("{name}.bias")));
    Linear { weight: index(params, name), stacked: 1, bias }
}

pub fn linears() -> Vec<Case> {
    let bias = vec![spec("w", &[5, 7]), spec("w.bias", &[5])];
    let stack = vec![spec("q", &[5, 7]), spec("k", &[2, 7]), spec("v", &[3, 7])];
    vec![
        case("linear", |p| Layer::Linear(single(p, "w", false)), vec![spec("w", &[5, 7])], 7, batch(2, 3, 9)),
        case("linear with bias", |p| Layer::Linear(single(p, "w", true)), bias, 7, batch(2, 3, 9)),
        case("stacked", |p| Layer::Linear(Linear { stacked: 3, ..single(p, "q", false) }), stack, 7, batch(2, 3, 9)),
    ]
}

pub fn norms() -> Vec<Case> {
    let mut cases = Vec::new();
    for skip in [false, true] {
        // Rows of 37 elements are not a multiple of the vector width; 3,000 of them are several tasks.
        for (rows, d) in [(6, 37), (3000, 16)] {
            let with = if skip { " with skip" } else { "" };
            let layer = |p: &Params| Layer::Norm {
                norm: Norm { gain: index(p, "norm").into(), bias: Some(index(p, "bias").into()), eps: 1e-5 },
                skip,
            };
            let specs = vec![spec("norm", &[d]), spec("bias", &[d])];
            cases.push(case(&format!("LayerNorm {rows}x{d}{with}"), layer, specs, d, batch(1, rows, 9)));
            let rms =
                |p: &Params| Layer::Norm { norm: Norm { gain: index(p, "norm").into(), bias: None, eps: 1e-5 }, skip };
            let specs = vec![spec("norm", &[d])];
            cases.push(case(&format!("RMSNorm {rows}x{d}{with}"), rms, specs, d, batch(1, rows, 9)));
        }
    }
    cases
}

fn attention_layer(p: &Params, heads: usize, kv_heads: usize, hd: usize, theta: Option<f64>, drop: f64) -> Attention {
    let rope = theta.map(|theta| Rope::new(&rotary(hd, theta), &p.flat).unwrap());
    let (qkv, out) = match theta {
        None => (single(p, "qkv", true), single(p, "out", true)),
        Some(_) => (Linear { stacked: 3, ..single(p, "q", false) }, single(p, "out", false)),
    };
    let dropout = DropoutSite::new(1, "attention", drop);
    let heads = Heads { queries: heads, kv: kv_heads, width: hd };
    let scale = 1.0 / (hd as f64).sqrt();
    Attention {
        qkv,
        out,
        heads,
        mask: Mask::Causal,
        scale,
        qk_norm: None,
        rope,
        dropout,
        value: Sums::default(),
        attended: Sums::default(),
    }
}

fn rotary(head_dim: usize, theta: f64) -> Rotary {
    Rotary { head_dim, dims: head_dim, theta, scaling: RopeScaling::None {}, context_length: 300 }
}

/// Learned positions: one biased matrix; rotary: three stacked ones.
fn attention_specs(heads: usize, kv_heads: usize, hd: usize, rope: bool) -> Vec<ParamSpec> {
    let d = heads * hd;
    if rope {
        let parts = [("q", d), ("k", kv_heads * hd), ("v", kv_heads * hd), ("out", d)];
        return parts.iter().map(|&(name, rows)| spec(name, &[rows, d])).collect();
    }
    let rows = (heads + 2 * kv_heads) * hd;
    vec![spec("qkv", &[rows, d]), spec("qkv.bias", &[rows]), spec("out", &[d, d]), spec("out.bias", &[d])]
}

fn attention(
    name: &str,
    (heads, kv_heads, hd): (usize, usize, usize),
    theta: Option<f64>,
    drop: f64,
    mb: MicroBatch,
) -> Case {
    let layer = |p: &Params| {
        Layer::Attention(attention_layer(p, heads, kv_heads, hd, theta, drop), theta.map(|theta| rotary(hd, theta)))
    };
    case(name, layer, attention_specs(heads, kv_heads, hd, theta.is_some()), heads * hd, mb)
}

/// Each case with a causal mask and without; windows and documents.
pub fn attentions() -> Vec<Case> {
    let causal = causal_attentions().into_iter();
    causal.chain(causal_attentions().into_iter().map(without_causal_mask)).chain(windows()).chain(documents()).collect()
}

/// Padding and windows leave each query a key: what no query sees has a different softmax in the oracle.
fn windows() -> Vec<Case> {
    let tokens = |name: &str, n, drop| attention(name, (4, 2, 4), Some(50.0), drop, batch(2, n, 9));
    [
        (tokens("attention", 6, 0.3), 2),
        (tokens("attention over tiles", 130, 0.0), 5),
        (tokens("attention over tiles with dropout", 130, 0.3), 40),
        (attention("attention that sees no padding", (2, 2, 4), None, 0.0, padded(batch(2, 130, 9), &[70, 128])), 64),
    ]
    .into_iter()
    .map(|(case, keys)| with_mask(case, Mask::Window(keys), &format!("a window of {keys} keys")))
    .collect()
}

fn documents() -> Vec<Case> {
    let tokens = |name: &str, drop, mb| attention(name, (4, 2, 4), Some(50.0), drop, mb);
    let starts = |starts: &[u32], seq: u32| -> Vec<u32> {
        (0..seq).filter_map(|at| starts.iter().copied().filter(|&start| start <= at).max()).collect()
    };
    let long = [starts(&[0, 3, 64, 70], 130), starts(&[0, 40, 129], 130)].concat();
    let short = [starts(&[0, 1, 4], 6), starts(&[0], 6)].concat();
    vec![
        tokens("attention with dropout within documents", 0.3, batch(2, 6, 9).with_documents(&short).unwrap()),
        tokens("attention over tiles within documents", 0.0, batch(2, 130, 9).with_documents(&long).unwrap()),
        with_mask(
            tokens("attention over tiles within documents", 0.0, batch(2, 130, 9).with_documents(&long).unwrap()),
            Mask::Window(10),
            "a window of 10 keys",
        ),
    ]
}

fn without_causal_mask(case: Case) -> Case {
    with_mask(case, Mask::Full, "without a causal mask")
}

fn with_mask(mut case: Case, new: Mask, name: &str) -> Case {
    match &mut case.layer {
        Layer::Attention(attention, _) => attention.mask = new,
        Layer::Transformer(layer, _) => {
            for sublayer in &mut layer.sublayers {
                if let LayerPart::Attention(attention) = &mut sublayer.part {
                    attention.mask = new;
                }
            }
        }
        _ => unreachable!("{} has no attention", case.name),
    }
    case.name = format!("{}, {name}", case.name);
    case
}

fn causal_attentions() -> Vec<Case> {
    vec![
        attention("attention of one token", (2, 2, 4), None, 0.0, batch(2, 1, 9)),
        attention("multi-head attention", (3, 3, 4), None, 0.0, batch(2, 6, 9)),
        attention("grouped attention with rotary positions", (4, 2, 6), Some(50.0), 0.0, batch(2, 6, 9)),
        attention("attention with dropout", (2, 2, 4), None, 0.3, batch(2, 6, 9)),
        attention("grouped attention with dropout", (4, 1, 4), Some(50.0), 0.3, batch(2, 6, 9)),
        // Tiles of queries are 64 or so: 130 crosses two boundaries and leaves a remainder.
        attention("attention over tiles", (2, 2, 4), None, 0.0, batch(2, 130, 9)),
        attention("attention over tiles with dropout", (2, 2, 4), None, 0.3, batch(2, 130, 9)),
        attention("grouped attention over tiles", (4, 2, 4), Some(50.0), 0.0, batch(2, 130, 9)),
        attention("attention that sees no padding", (2, 2, 4), None, 0.3, padded(batch(3, 6, 9), &[4, 6, 1])),
        attention(
            "grouped attention over tiles, no padding",
            (4, 2, 4),
            Some(50.0),
            0.0,
            padded(batch(2, 130, 9), &[70, 128]),
        ),
        attention("attention of just one tile", (2, 1, 4), Some(50.0), 0.0, batch(1, 64, 9)),
    ]
}

/// In row i the first `filled[i]` tokens are text, and the rest is padding.
fn padded(mb: MicroBatch, filled: &[usize]) -> MicroBatch {
    mb.with_valid_lengths(filled).unwrap()
}

fn gelu(p: &Params) -> Mlp {
    plain(p, Activation::Gelu, 0.0)
}

fn plain(p: &Params, activation: Activation, drop: f64) -> Mlp {
    let dropout = DropoutSite::new(1, "mlp", drop);
    Mlp::Plain { up: single(p, "up", true), activation, dropout, down: single(p, "down", true) }
}

fn swiglu(p: &Params) -> Mlp {
    gated(p, Activation::Silu, 0.0)
}

fn gated(p: &Params, activation: Activation, drop: f64) -> Mlp {
    let dropout = DropoutSite::new(1, "mlp", drop);
    let gate_up = Linear { stacked: 2, ..single(p, "gate", false) };
    Mlp::Gated { gate_up, activation, dropout, down: single(p, "down", false) }
}

fn gelu_specs(d: usize, ff: usize) -> Vec<ParamSpec> {
    vec![spec("up", &[ff, d]), spec("up.bias", &[ff]), spec("down", &[d, ff]), spec("down.bias", &[d])]
}

fn swiglu_specs(d: usize, ff: usize) -> Vec<ParamSpec> {
    vec![spec("gate", &[ff, d]), spec("up", &[ff, d]), spec("down", &[d, ff])]
}

pub fn mlps() -> Vec<Case> {
    vec![
        case("GELU MLP", |p| Layer::Mlp(gelu(p)), gelu_specs(6, 21), 6, batch(2, 4, 9)),
        case("ReLU MLP", |p| Layer::Mlp(plain(p, Activation::Relu, 0.0)), gelu_specs(6, 21), 6, batch(2, 4, 9)),
        case("ReLU² MLP", |p| Layer::Mlp(plain(p, Activation::Relu2, 0.0)), gelu_specs(6, 21), 6, batch(2, 4, 9)),
        case(
            "ReLU² MLP, dropout",
            |p| Layer::Mlp(plain(p, Activation::Relu2, 0.3)),
            gelu_specs(6, 21),
            6,
            batch(2, 4, 9),
        ),
        case(
            "ReLU MLP, dropout",
            |p| Layer::Mlp(plain(p, Activation::Relu, 0.3)),
            gelu_specs(6, 21),
            6,
            batch(2, 4, 9),
        ),
        case(
            "GELU MLP, dropout",
            |p| Layer::Mlp(plain(p, Activation::Gelu, 0.3)),
            gelu_specs(6, 21),
            6,
            batch(2, 4, 9),
        ),
        case("SwiGLU MLP", |p| Layer::Mlp(swiglu(p)), swiglu_specs(6, 21), 6, batch(2, 4, 9)),
        case("gated GELU", |p| Layer::Mlp(gated(p, Activation::Gelu, 0.3)), swiglu_specs(6, 21), 6, batch(2, 4, 9)),
        case("gated ReLU", |p| Layer::Mlp(gated(p, Activation::Relu, 0.0)), swiglu_specs(6, 21), 6, batch(2, 4, 9)),
        case("gated ReLU²", |p| Layer::Mlp(gated(p, Activation::Relu2, 0.0)), swiglu_specs(6, 21), 6, batch(2, 4, 9)),
        case("SiLU MLP", |p| Layer::Mlp(plain(p, Activation::Silu, 0.3)), gelu_specs(6, 21), 6, batch(2, 4, 9)),
    ]
}

pub fn embeddings() -> Vec<Case> {
    let one = |name: &str, positions: &str, scale: Option<f64>, p: f64| {
        let mut specs = vec![spec("tokens", &[5, 67])];
        if positions == "learned" {
            specs.push(spec("positions", &[9, 67]));
        }
        let layer = |params: &Params| {
            Layer::Embedding(Embedding {
                tokens: index(params, "tokens"),
                scale,
                positions: match positions {
                    "learned" => Positions::Learned(index(params, "positions")),
                    "fixed" => Positions::Fixed(sinusoids(9, 67, &params.flat).unwrap()),
                    _ => Positions::None,
                },
                norm: None,
                sums: Sums::default(),
                tables: Vec::new(),
                dropout: DropoutSite::new(1, "embedding", p),
            })
        };
        // 14 tokens out of 5 ids: they repeat.
        case(name, layer, specs, 0, batch(2, 7, 5))
    };
    vec![
        one("embedding", "", None, 0.0),
        one("embedding with positions", "learned", None, 0.0),
        one("embedding with positions and dropout", "learned", None, 0.3),
        one("scaled embedding with positions and dropout", "learned", Some(67_f64.sqrt()), 0.3),
        one("scaled embedding with sinusoids and dropout", "fixed", Some(67_f64.sqrt()), 0.3),
    ]
}

pub fn heads() -> Vec<Case> {
    let project = |p: &Params| Linear { weight: index(p, "head"), stacked: 1, bias: None };
    let layer = |p: &Params| {
        let norm = Norm { gain: index(p, "norm").into(), bias: Some(index(p, "bias").into()), eps: 1e-5 };
        Layer::Head(Head { sums: Sums::default(), norm: Some(norm), project: project(p), loss: LossOptions::default() })
    };
    let bare = |p: &Params| {
        Layer::Head(Head {
            sums: Sums::default(),
            norm: None,
            project: single(p, "head", true),
            loss: LossOptions::default(),
        })
    };
    let rms = |p: &Params| {
        Layer::Head(Head {
            sums: Sums::default(),
            norm: Some(Norm { gain: index(p, "norm").into(), bias: None, eps: 1e-5 }),
            project: project(p),
            loss: LossOptions::default(),
        })
    };
    let specs = vec![spec("norm", &[6]), spec("bias", &[6]), spec("head", &[11, 6])];
    vec![
        case("head after LayerNorm", layer, specs, 6, batch(2, 7, 11)),
        case(
            "head with a bias and without a norm",
            bare,
            vec![spec("head", &[11, 6]), spec("head.bias", &[11])],
            6,
            batch(2, 7, 11),
        ),
        case("head after RMSNorm", rms, vec![spec("norm", &[6]), spec("head", &[11, 6])], 6, batch(2, 7, 11)),
    ]
}

/// Attention and an MLP, with a norm each, before the part or after the sum.
fn two_parts(
    norm_place: NormPlace,
    [first, second]: [Norm; 2],
    attention: Attention,
    mlp: Mlp,
    dropout: [DropoutSite; 2],
) -> TransformerLayer {
    let parts = [(first, LayerPart::Attention(Box::new(attention))), (second, LayerPart::Mlp(mlp))];
    let sublayer = |((norm, part), dropout)| match norm_place {
        NormPlace::Pre => Sublayer { before: Some(norm), part, after: None, dropout },
        _ => Sublayer { before: None, part, after: Some(norm), dropout },
    };
    let sublayers = parts.into_iter().zip(dropout).map(sublayer).collect();
    TransformerLayer { norm_place, input: Sums::default(), sublayers, recompute: Recompute::None }
}

pub fn transformers() -> Vec<Case> {
    let biased = |p: &Params, place: NormPlace, mlp: Mlp, drop: f64| {
        let norm =
            |n: &str| Norm { gain: index(p, &format!("{n}norm")).into(), bias: Some(index(p, n).into()), eps: 1e-5 };
        let attention = attention_layer(p, 2, 2, 4, None, drop);
        let dropout = ["attention.output", "mlp.output"].map(|name| DropoutSite::new(1, name, drop));
        Layer::Transformer(two_parts(place, [norm("first"), norm("second")], attention, mlp, dropout), None)
    };
    let gpt2 = |p: &Params| biased(p, NormPlace::Pre, gelu(p), 0.2);
    let post = |p: &Params| biased(p, NormPlace::Post, gelu(p), 0.0);
    let encoder = |p: &Params| biased(p, NormPlace::Post, plain(p, Activation::Relu, 0.2), 0.2);
    let llama = |p: &Params| {
        let norm = |n: &str| Norm { gain: index(p, n).into(), bias: None, eps: 1e-5 };
        let off = DropoutSite::new(1, "off", 0.0);
        let (norms, attention) =
            ([norm("firstnorm"), norm("secondnorm")], attention_layer(p, 4, 2, 4, Some(50.0), 0.0));
        let layer = two_parts(NormPlace::Pre, norms, attention, swiglu(p), [off, off]);
        Layer::Transformer(layer, Some(rotary(4, 50.0)))
    };
    let vectors = |names: &[&str], d: usize| names.iter().map(|n| spec(n, &[d])).collect::<Vec<_>>();
    let first = [attention_specs(2, 2, 4, false), gelu_specs(8, 12)].concat();
    let first = [first, vectors(&["firstnorm", "first", "secondnorm", "second"], 8)].concat();
    let second = [attention_specs(4, 2, 4, true), swiglu_specs(16, 12)].concat();
    let second = [second, vectors(&["firstnorm", "secondnorm"], 16)].concat();
    vec![
        case("GPT-2 layer with dropout", gpt2, first.clone(), 8, batch(2, 6, 9)),
        case("layer with norms behind", post, first.clone(), 8, batch(2, 6, 9)),
        case("encoder layer with dropout", encoder, first.clone(), 8, batch(2, 6, 9)),
        without_causal_mask(case("encoder layer", post, first, 8, padded(batch(2, 6, 9), &[4, 6]))),
        case("Llama layer", llama, second, 16, batch(2, 6, 9)),
    ]
}

/// Models with the parts of published ones.
pub fn recent_models() -> Vec<Case> {
    let one = |(name, s): (&str, ModelSpec)| {
        let (model, params) = super::model(&s, 0.3);
        Case { name: name.into(), layer: Layer::Model(Box::new(model)), params, x: None, mb: batch(2, 9, s.vocab_size) }
    };
    super::recent_models().into_iter().map(one).collect()
}

/// Models with sums of named values.
pub fn models_with_sums() -> Vec<Case> {
    let one = |(name, s): (&str, ModelSpec)| {
        let (model, params) = super::model(&s, 0.3);
        Case { name: name.into(), layer: Layer::Model(Box::new(model)), params, x: None, mb: batch(2, 9, s.vocab_size) }
    };
    super::models_with_sums().into_iter().map(one).collect()
}

/// Whole models. With `dropout`, also a GPT-2 with dropout, which the oracle does not support.
pub fn models(dropout: bool) -> Vec<Case> {
    let one = |name: &str, s: ModelSpec| {
        let (model, params) = super::model(&s, 0.3);
        Case { name: name.into(), layer: Layer::Model(Box::new(model)), params, x: None, mb: batch(2, 9, s.vocab_size) }
    };
    let (gpt2, llama, encoder) = (small_gpt2(), small_llama(), small_encoder());
    let mut cases = vec![
        one("GPT-2, tied", gpt2.clone()),
        one("GPT-2, untied", ModelSpec { tie_embeddings: false, ..gpt2.clone() }),
        one("Llama, untied", llama.clone()),
        one("Llama, tied", ModelSpec { tie_embeddings: true, ..llama }),
        one("encoder layers", encoder.clone()),
        one("encoder layers, tied", ModelSpec { tie_embeddings: true, ..encoder.clone() }),
    ];
    if dropout {
        cases.push(one("GPT-2 with dropout", ModelSpec { dropout: 0.2, ..gpt2 }));
        let variant = ModelOptions { mlp_dropout: 0.3, ..encoder.options };
        cases.push(one("encoder layers with dropout", ModelSpec { dropout: 0.2, options: variant, ..encoder }));
    }
    cases
}

/// Every combination of the variants of the gpt2 family: 128 models.
pub fn variants() -> Vec<Case> {
    let mut cases = Vec::new();
    for bits in 0_u32..128 {
        let on = |bit: u32| bits >> bit & 1 == 1;
        let variant = ModelOptions {
            norm: if on(0) { NormPlace::Post } else { NormPlace::Pre },
            activation: Some(if on(1) { Activation::Relu } else { Activation::Gelu }),
            positions: if on(2) { PositionKind::Sinusoidal } else { PositionKind::Learned },
            embedding_scale: on(3),
            head_bias: on(4),
            final_norm: !on(5),
            ..ModelOptions::default()
        };
        let spec = ModelSpec { tie_embeddings: on(6), options: variant.clone(), ..small_gpt2() };
        let (model, params) = super::model(&spec, 0.3);
        let mb = batch(2, 9, spec.vocab_size);
        cases.push(Case { name: format!("{variant:?}"), layer: Layer::Model(Box::new(model)), params, x: None, mb });
    }
    cases
}
