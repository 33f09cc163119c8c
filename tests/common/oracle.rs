//! The layers in plain differentiable candle operations: slow, and the reference for values and gradients.
//!
//! They use none of candle_nn's fused operations, which have no backward.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use candle_core::{D, Tensor};
use runner_compute::kernels::loss::LossOptions;
use runner_compute::model::Params;
use runner_compute::nn::{
    Attention, DropoutSite, Embedding, Head, LayerPart, Linear, MicroBatch, Mlp, Norm, NormVector, Positions, QkNorm,
    Sublayer, Sums, TransformerLayer,
};
use runner_spec::experiment::{Activation, Family, NormPlace, PositionKind, Recompute};
use runner_spec::model::{Biases, LayerOptions, Mask, ModelSpec, NormGain, RopeScaling, Rotary};

/// x·wᵀ + b.
pub fn linear(l: &Linear, params: &Params, x: &Tensor) -> Tensor {
    let w = params.view(l.weight, l.stacked).unwrap();
    let y = x.matmul(&w.t().unwrap()).unwrap();
    match l.bias {
        Some(b) => y.broadcast_add(&params.view(b, l.stacked).unwrap()).unwrap(),
        None => y,
    }
}

/// Both norms by their definition.
pub fn norm(n: &Norm, params: &Params, x: &Tensor) -> Tensor {
    let standardized = |x: &Tensor, eps: f64| {
        let power = x.sqr().unwrap().mean_keepdim(D::Minus1).unwrap();
        x.broadcast_div(&(power + eps).unwrap().sqrt().unwrap()).unwrap()
    };
    let value = |vector: &NormVector| match vector {
        NormVector::Parameter(index) => params.parameter(*index).unwrap(),
        NormVector::Sum(constant, index) => (constant + params.parameter(*index).unwrap()).unwrap(),
        NormVector::Fixed(constant) => constant.clone(),
    };
    let weight = value(&n.gain);
    let Some(bias) = &n.bias else { return standardized(x, n.eps).broadcast_mul(&weight).unwrap() };
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1).unwrap()).unwrap();
    let y = standardized(&centred, n.eps).broadcast_mul(&weight).unwrap();
    y.broadcast_add(&value(bias)).unwrap()
}

/// 0 or 1/(1 − p) per element of [batch·seq, width].
fn mask(site: &DropoutSite, mb: &MicroBatch, like: &Tensor) -> Tensor {
    let ones = like.detach().ones_like().unwrap();
    site.apply(&ones, mb).unwrap();
    ones
}

fn dropout(site: &DropoutSite, mb: &MicroBatch, x: &Tensor) -> Tensor {
    (x * mask(site, mb, x)).unwrap()
}

/// The dropout mask of attention's probabilities, [batch, heads, seq, seq].
fn attention_mask(site: &DropoutSite, mb: &MicroBatch, heads: usize) -> Option<Tensor> {
    let dropout = site.mask(mb)?;
    let per_sample = heads * mb.seq * mb.seq;
    let mut mask = vec![1.0_f64; mb.batch * per_sample];
    for (b, sample) in mask.chunks_mut(per_sample).enumerate() {
        dropout.apply(sample, b, 0);
    }
    Some(Tensor::from_vec(mask, (mb.batch, heads, mb.seq, mb.seq), mb.ids.device()).unwrap())
}

/// Softmax over the last dimension.
fn softmax(x: &Tensor) -> Tensor {
    let top = x.max_keepdim(D::Minus1).unwrap().detach();
    let e = x.broadcast_sub(&top).unwrap().exp().unwrap();
    e.broadcast_div(&e.sum_keepdim(D::Minus1).unwrap()).unwrap()
}

/// Rotate-half of the first `dims` of hd dimensions: (a, b) becomes (a·cos − b·sin, b·cos + a·sin), by position·theta^(−2i/dims).
/// `x`: [batch, heads, seq, hd].
fn rotate(x: &Tensor, rotary: &Rotary) -> Tensor {
    let (_, _, seq, hd) = x.dims4().unwrap();
    let (dims, half) = (rotary.dims, rotary.dims / 2);
    let frequencies: Vec<f64> = match rotary.scaling {
        RopeScaling::None {} => (0..half).map(|i| 1.0 / rotary.theta.powf(2.0 * i as f64 / dims as f64)).collect(),
        // The logits of other programs check these (tests/fixtures/hf).
        _ => rotary.frequencies(),
    };
    let angles: Vec<f64> = (0..seq * half).map(|n| (n / half) as f64 * frequencies[n % half]).collect();
    let angles = Tensor::from_vec(angles, (seq, half), x.device()).unwrap();
    let (cos, sin) =
        ((angles.cos().unwrap() * rotary.factor()).unwrap(), (angles.sin().unwrap() * rotary.factor()).unwrap());
    let rest = x.narrow(3, dims, hd - dims).unwrap();
    let (a, b) = (x.narrow(3, 0, half).unwrap(), x.narrow(3, half, half).unwrap());
    let times = |x: &Tensor, y: &Tensor| x.broadcast_mul(y).unwrap();
    let first = (times(&a, &cos) - times(&b, &sin)).unwrap();
    let second = (times(&b, &cos) + times(&a, &sin)).unwrap();
    Tensor::cat(&[first, second, rest], 3).unwrap()
}

/// Attention with its projections; `rotary` where positions are rotary. `x`: [batch·seq, d_model].
pub fn attention(a: &Attention, rotary: Option<Rotary>, params: &Params, x: &Tensor, mb: &MicroBatch) -> Tensor {
    let (batch, seq, hd) = (mb.batch, mb.seq, a.heads.width);
    let (queries, kv) = (a.heads.queries, a.heads.kv);
    let qkv = linear(&a.qkv, params, x);
    let part = |first: usize, heads: usize| {
        let part = qkv.narrow(1, first * hd, heads * hd).unwrap();
        part.reshape((batch, seq, heads, hd)).unwrap().transpose(1, 2).unwrap().contiguous().unwrap()
    };
    let (mut q, mut k, v) = (part(0, queries), part(queries, kv), part(queries + kv, kv));
    // Over each head, or over all heads of a token.
    let normed = |x: Tensor, index: usize| {
        let Some(QkNorm { norms, .. }) = &a.qk_norm else { return x };
        let (norm_of, width) = &norms[index];
        let heads = x.dims4().unwrap().1;
        let rows = x.transpose(1, 2).unwrap().contiguous().unwrap().reshape(((), *width)).unwrap();
        let rows = norm(norm_of, params, &rows).reshape((batch, seq, heads, hd)).unwrap();
        rows.transpose(1, 2).unwrap().contiguous().unwrap()
    };
    let rotated = |x: Tensor| rotary.map_or_else(|| x.clone(), |rotary| rotate(&x, &rotary));
    if a.qk_norm.as_ref().is_some_and(|norm| norm.rotates_first) {
        (q, k) = (normed(rotated(q), 0), normed(rotated(k), 1));
    } else {
        (q, k) = (rotated(normed(q, 0)), rotated(normed(k, 1)));
    }
    // Query head h reads key-value head h / group.
    let repeat = |x: &Tensor| {
        let x = x.unsqueeze(2).unwrap().broadcast_as((batch, kv, queries / kv, seq, hd)).unwrap();
        x.contiguous().unwrap().reshape((batch, queries, seq, hd)).unwrap()
    };
    let (k, v) = (repeat(&k), repeat(&v));
    let mut scores = (q.matmul(&k.transpose(2, 3).unwrap().contiguous().unwrap()).unwrap() * a.scale).unwrap();
    let sees = |query: usize, key: usize| match a.mask {
        Mask::Full => true,
        Mask::Causal => key <= query,
        Mask::Window(keys) => key <= query && query - key < keys as usize,
    };
    let hidden: Vec<f64> = (0..seq * seq).map(|n| if sees(n / seq, n % seq) { 0.0 } else { -1e30 }).collect();
    scores = scores.broadcast_add(&Tensor::from_vec(hidden, (seq, seq), x.device()).unwrap()).unwrap();
    if let Some(documents) = &mb.documents {
        let unseen = documents
            .host
            .iter()
            .flat_map(|&start| (0..seq).map(move |key| if key < start as usize { -1e30 } else { 0.0 }));
        let unseen = Tensor::from_vec(unseen.collect::<Vec<f64>>(), (batch, 1, seq, seq), x.device()).unwrap();
        scores = scores.broadcast_add(&unseen).unwrap();
    }
    if let Some(filled) = &mb.valid_lengths {
        let beyond = filled.host.iter().flat_map(|&n| (0..seq).map(move |key| if key < n { 0.0 } else { -1e30 }));
        let beyond = Tensor::from_vec(beyond.collect::<Vec<f64>>(), (batch, 1, 1, seq), x.device()).unwrap();
        scores = scores.broadcast_add(&beyond).unwrap();
    }
    let mut p = softmax(&scores);
    if let Some(mask) = attention_mask(&a.dropout, mb, queries) {
        p = (p * mask).unwrap();
    }
    let heads = p.matmul(&v).unwrap().transpose(1, 2).unwrap().contiguous().unwrap();
    linear(&a.out, params, &heads.reshape((batch * seq, queries * hd)).unwrap())
}

/// GELU's tanh form, ReLU, its square, or SiLU.
fn activate(activation: Activation, x: &Tensor) -> Tensor {
    match activation {
        Activation::Relu => x.relu().unwrap(),
        Activation::Relu2 => x.relu().unwrap().sqr().unwrap(),
        Activation::Silu => {
            let sigmoid = (x.neg().unwrap().exp().unwrap() + 1.0).unwrap().recip().unwrap();
            (x * sigmoid).unwrap()
        }
        Activation::Gelu => {
            let inner = (x + (x.powf(3.0).unwrap() * 0.044_715).unwrap()).unwrap();
            let tanh = (inner * (2.0 / std::f64::consts::PI).sqrt()).unwrap().tanh().unwrap();
            ((x * 0.5).unwrap() * (tanh + 1.0).unwrap()).unwrap()
        }
    }
}

/// An activation between two projections, or times a third one, with dropout.
pub fn mlp(m: &Mlp, params: &Params, x: &Tensor, mb: &MicroBatch) -> Tensor {
    match m {
        Mlp::Plain { up, activation, dropout: site, down } => {
            linear(down, params, &dropout(site, mb, &activate(*activation, &linear(up, params, x))))
        }
        Mlp::Gated { gate_up, activation, dropout: site, down } => {
            let both = linear(gate_up, params, x);
            let width = both.dims2().unwrap().1 / 2;
            let (gate, up) = (both.narrow(1, 0, width).unwrap(), both.narrow(1, width, width).unwrap());
            linear(down, params, &dropout(site, mb, &(activate(*activation, &gate) * up).unwrap()))
        }
    }
}

/// Token rows times the scale, plus position rows, with dropout.
pub fn embedding(e: &Embedding, params: &Params, mb: &MicroBatch) -> Tensor {
    let mut x = params.parameter(e.tokens).unwrap().index_select(&mb.ids, 0).unwrap();
    if let Some(scale) = e.scale {
        x = (x * scale).unwrap();
    }
    let positions: Vec<u32> = (0..mb.batch * mb.seq).map(|r| (r % mb.seq) as u32).collect();
    let positions = Tensor::from_vec(positions, mb.batch * mb.seq, x.device()).unwrap();
    match &e.positions {
        Positions::None => {}
        Positions::Learned(p) => {
            x = (x + params.parameter(*p).unwrap().index_select(&positions, 0).unwrap()).unwrap();
        }
        // Sinusoidal positions by their definition.
        Positions::Fixed(table) => {
            let d = table.dims2().unwrap().1;
            let wave = |n: usize| {
                let (row, column) = (n / d % mb.seq, n % d);
                let angle = row as f64 / 10_000_f64.powf((column / 2 * 2) as f64 / d as f64);
                if column % 2 == 0 { angle.sin() } else { angle.cos() }
            };
            let waves: Vec<f64> = (0..mb.batch * mb.seq * d).map(wave).collect();
            x = (x + Tensor::from_vec(waves, (mb.batch * mb.seq, d), table.device()).unwrap()).unwrap();
        }
    }
    if let Some(n) = &e.norm {
        x = norm(n, params, &x);
    }
    dropout(&e.dropout, mb, &x)
}

/// Logits.
pub fn head(h: &Head, params: &Params, x: &Tensor) -> Tensor {
    let logits = match &h.norm {
        Some(n) => linear(&h.project, params, &norm(n, params, x)),
        None => linear(&h.project, params, x),
    };
    h.loss.cap.map_or(logits.clone(), |cap| ((logits / cap).unwrap().tanh().unwrap() * cap).unwrap())
}

/// A transformer layer: each part with its norms, one after the other.
pub fn layer(l: &TransformerLayer, rotary: Option<Rotary>, params: &Params, x: &Tensor, mb: &MicroBatch) -> Tensor {
    let mut x = x.clone();
    for Sublayer { before, part, after, dropout: site } in &l.sublayers {
        let input = before.as_ref().map_or_else(|| x.clone(), |n| norm(n, params, &x));
        let y = match part {
            LayerPart::Attention(a) => attention(a, rotary, params, &input, mb),
            LayerPart::Mlp(m) => mlp(m, params, &input, mb),
        };
        x = match after {
            None => (x + dropout(site, mb, &y)).unwrap(),
            Some(n) if l.norm_place == NormPlace::Post => norm(n, params, &(x + dropout(site, mb, &y)).unwrap()),
            Some(n) => (x + dropout(site, mb, &norm(n, params, &y))).unwrap(),
        };
    }
    x
}

/// Logits of a whole model, assembled from the parameters' names, without dropout.
#[expect(clippy::too_many_lines, reason = "one model, part by part")]
pub fn model(spec: &ModelSpec, params: &Params, mb: &MicroBatch) -> Tensor {
    let at = |name: &str| params.layout.index(name).unwrap();
    let off = DropoutSite::new(0, "off", 0.0);
    let one = |prefix: String, bias: bool| Linear {
        weight: at(&format!("{prefix}.weight")),
        stacked: 1,
        bias: bias.then(|| at(&format!("{prefix}.bias"))),
    };
    let gpt2 = spec.family == Family::Gpt2;
    let variant = &spec.options;
    let biases = variant.biases.unwrap_or(if gpt2 { Biases::All } else { Biases::None });
    let constant = |number: f64, width: usize| {
        (Tensor::zeros(width, params.flat.dtype(), params.flat.device()).unwrap() + number).unwrap()
    };
    let normed = |prefix: String, layer_norm: bool, width: usize| {
        let weight = || at(&format!("{prefix}.weight"));
        let gain = match variant.norm_gain {
            NormGain::Weight => NormVector::Parameter(weight()),
            NormGain::OnePlusWeight => NormVector::Sum(constant(1.0, width), weight()),
            NormGain::None => NormVector::Fixed(constant(1.0, width)),
        };
        let is_biased = biases != Biases::None && variant.norm_gain != NormGain::None;
        let bias = layer_norm.then(|| {
            if is_biased {
                NormVector::Parameter(at(&format!("{prefix}.bias")))
            } else {
                NormVector::Fixed(constant(0.0, width))
            }
        });
        Norm { gain, bias, eps: spec.norm_eps }
    };
    let table = if gpt2 { "transformer.wte" } else { "model.embed_tokens" };
    let positions = match variant.positions {
        _ if !gpt2 => Positions::None,
        PositionKind::Learned => Positions::Learned(at("transformer.wpe.weight")),
        PositionKind::Sinusoidal => {
            Positions::Fixed(Tensor::zeros((1, spec.d_model), params.flat.dtype(), params.flat.device()).unwrap())
        }
    };
    let tokens = at(&format!("{table}.weight"));
    let scale = variant.embedding_scale.then(|| (spec.d_model as f64).sqrt());
    let norm = variant
        .embedding_norm
        .then(|| normed(if gpt2 { "transformer.wte_norm" } else { "model.embed_norm" }.into(), gpt2, spec.d_model));
    let mut x = embedding(
        &Embedding { tokens, scale, positions, norm, sums: Sums::default(), tables: Vec::new(), dropout: off },
        params,
        mb,
    );
    let listed: Vec<&LayerOptions> =
        variant.pattern.iter().flat_map(|layer| std::iter::repeat_n(layer, layer.layers)).collect();
    let plain = LayerOptions::default();
    for i in 0..spec.layers {
        let options = if listed.is_empty() { &plain } else { listed[i % listed.len()] };
        let p = if gpt2 { format!("transformer.h.{i}") } else { format!("model.layers.{i}") };
        let (attn, heads) = (if gpt2 { "attn" } else { "self_attn" }, spec.attention_heads());
        let (qkv, out) = if gpt2 { ("c_attn", "c_proj") } else { ("q_proj", "o_proj") };
        let qk_width = match variant.qk_norm {
            runner_spec::model::QkNorm::None => None,
            runner_spec::model::QkNorm::Width => Some([heads.out_width(), heads.kv * heads.width]),
            _ => Some([heads.width; 2]),
        };
        let qk_norm = || {
            qk_width.map(|widths| QkNorm {
                norms: [("q_norm", widths[0]), ("k_norm", widths[1])]
                    .map(|(name, width)| (normed(format!("{p}.{attn}.{name}"), false, width), width)),
                rotates_first: variant.qk_norm == runner_spec::model::QkNorm::HeadAfterRope,
            })
        };
        let attention = || {
            LayerPart::Attention(Box::new(Attention {
                qkv: Linear {
                    stacked: if gpt2 { 1 } else { 3 },
                    ..one(format!("{p}.{attn}.{qkv}"), biases >= Biases::Qkv)
                },
                out: one(format!("{p}.{attn}.{out}"), biases >= Biases::Attention),
                heads,
                mask: match options.window.or(variant.window) {
                    Some(keys) => Mask::Window(keys),
                    None => variant.mask,
                },
                scale: variant.attention_scale.unwrap_or(1.0 / (heads.width as f64).sqrt()),
                qk_norm: qk_norm(),
                rope: None,
                dropout: off,
                value: Sums::default(),
                attended: Sums::default(),
            }))
        };
        let activation = variant.activation.unwrap_or(if gpt2 { Activation::Gelu } else { Activation::Silu });
        let gated = variant.gated.unwrap_or(!gpt2);
        let (up, down) = match (gpt2, gated) {
            (true, _) => ("c_fc", "c_proj"),
            (false, true) => ("gate_proj", "down_proj"),
            (false, false) => ("up_proj", "down_proj"),
        };
        let mlp = || {
            let up = one(format!("{p}.mlp.{up}"), biases == Biases::All);
            let down = one(format!("{p}.mlp.{down}"), biases == Biases::All);
            if gated {
                let gate_up = Linear { stacked: if gpt2 { 1 } else { 2 }, ..up };
                Mlp::Gated { gate_up, activation, dropout: off, down }
            } else {
                Mlp::Plain { up, activation, dropout: off, down }
            }
        };
        let name = |gpt2_name: &str, llama_name: &str| Some(if gpt2 { gpt2_name } else { llama_name }.to_owned());
        let [first, second] = match variant.norm {
            NormPlace::Pre => {
                [[name("ln_1", "input_layernorm"), None], [name("ln_2", "post_attention_layernorm"), None]]
            }
            NormPlace::Post | NormPlace::Output => {
                [[None, name("ln_1", "post_attention_layernorm")], [None, name("ln_2", "post_feedforward_layernorm")]]
            }
            NormPlace::Both => [
                [name("ln_1", "input_layernorm"), name("ln_1_out", "post_attention_layernorm")],
                [name("ln_2", "pre_feedforward_layernorm"), name("ln_2_out", "post_feedforward_layernorm")],
            ],
        };
        let sublayer = |[before, after]: [Option<String>; 2], part: LayerPart| {
            let norm = |name: Option<String>| name.map(|name| normed(format!("{p}.{name}"), gpt2, spec.d_model));
            Sublayer { before: norm(before), part, after: norm(after), dropout: off }
        };
        let sublayers = options.attention.then(|| sublayer(first, attention())).into_iter();
        let sublayers = sublayers.chain(options.mlp.then(|| sublayer(second, LayerPart::Mlp(mlp())))).collect();
        let l = TransformerLayer {
            norm_place: variant.norm,
            input: Sums::default(),
            sublayers,
            recompute: Recompute::None,
        };
        let dims = variant.rope_fraction.map_or(heads.width, |part| (heads.width as f64 * part) as usize / 2 * 2);
        let rotary = (!gpt2 && options.rope).then(|| Rotary {
            head_dim: heads.width,
            dims,
            theta: options.rope_theta.unwrap_or(spec.rope_theta),
            scaling: options.rope_scaling.unwrap_or(variant.rope_scaling),
            context_length: spec.context_length,
        });
        x = layer(&l, rotary, params, &x, mb);
    }
    let last = if gpt2 { "transformer.ln_f" } else { "model.norm" };
    let project = if spec.tie_embeddings { table } else { "lm_head" };
    let bias = variant.head_bias.then(|| at("lm_head.bias"));
    let project = Linear { bias, ..one(project.into(), false) };
    let norm = variant.final_norm.then(|| normed(last.into(), gpt2, spec.d_model));
    head(
        &Head { sums: Sums::default(), norm, project, loss: LossOptions { cap: variant.logit_softcap, z: 0.0 } },
        params,
        &x,
    )
}

/// scale · Σ (logsumexp − logit of the target), over targets that are not ignored.
pub fn cross_entropy(logits: &Tensor, targets: &[u32], scale: f64) -> Tensor {
    let rows: Vec<u32> =
        (0..targets.len()).filter(|&r| targets[r] != runner_spec::data::IGNORED_TARGET).map(|r| r as u32).collect();
    let wanted: Vec<u32> = rows.iter().map(|&r| targets[r as usize]).collect();
    let count = rows.len();
    let logits = logits.index_select(&Tensor::from_vec(rows, count, logits.device()).unwrap(), 0).unwrap();
    let wanted = Tensor::from_vec(wanted, (count, 1), logits.device()).unwrap();
    let at_target = logits.gather(&wanted, 1).unwrap();
    let top = logits.max_keepdim(1).unwrap().detach();
    let sum = logits.broadcast_sub(&top).unwrap().exp().unwrap().sum_keepdim(1).unwrap();
    let losses = ((sum.log().unwrap() + top).unwrap() - at_target).unwrap();
    (losses.sum_all().unwrap() * scale).unwrap()
}
