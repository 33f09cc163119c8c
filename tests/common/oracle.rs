//! The layers in plain differentiable candle operations: slow, and the reference for values and gradients.
//!
//! They use none of candle_nn's fused operations, which have no backward.

#![allow(clippy::unwrap_used, reason = "a test that cannot be set up has failed")]

use candle_core::{D, Tensor};
use runner_compute::model::Params;
use runner_compute::nn::{
    Attention, DropoutSite, Embedding, Head, Linear, MicroBatch, Mlp, Norm, Positions, TransformerLayer,
};
use runner_spec::experiment::{Activation, Family, NormPlace, PositionKind, Recompute};
use runner_spec::model::{Mask, ModelSpec};

/// x·wᵀ + b.
pub fn linear(l: &Linear, params: &Params, x: &Tensor) -> Tensor {
    let w = params.view(l.weight, l.stacked).unwrap();
    let y = x.matmul(&w.t().unwrap()).unwrap();
    match l.bias {
        Some(b) => y.broadcast_add(&params.parameter(b).unwrap()).unwrap(),
        None => y,
    }
}

/// Both norms by their definition.
pub fn norm(n: &Norm, params: &Params, x: &Tensor) -> Tensor {
    let standardized = |x: &Tensor, eps: f64| {
        let power = x.sqr().unwrap().mean_keepdim(D::Minus1).unwrap();
        x.broadcast_div(&(power + eps).unwrap().sqrt().unwrap()).unwrap()
    };
    let weight = params.parameter(n.weight).unwrap();
    let Some(bias) = n.bias else { return standardized(x, n.eps).broadcast_mul(&weight).unwrap() };
    let centred = x.broadcast_sub(&x.mean_keepdim(D::Minus1).unwrap()).unwrap();
    let y = standardized(&centred, n.eps).broadcast_mul(&weight).unwrap();
    y.broadcast_add(&params.parameter(bias).unwrap()).unwrap()
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

/// Rotate-half: (a, b) becomes (a·cos − b·sin, b·cos + a·sin), by position·theta^(−2i/head_dim). `x`: [batch, heads, seq, hd].
fn rotate(x: &Tensor, theta: f64) -> Tensor {
    let (_, _, seq, hd) = x.dims4().unwrap();
    let half = hd / 2;
    let angles: Vec<f64> =
        (0..seq * half).map(|n| (n / half) as f64 / theta.powf(2.0 * (n % half) as f64 / hd as f64)).collect();
    let angles = Tensor::from_vec(angles, (seq, half), x.device()).unwrap();
    let (cos, sin) = (angles.cos().unwrap(), angles.sin().unwrap());
    let (a, b) = (x.narrow(3, 0, half).unwrap(), x.narrow(3, half, half).unwrap());
    let times = |x: &Tensor, y: &Tensor| x.broadcast_mul(y).unwrap();
    let first = (times(&a, &cos) - times(&b, &sin)).unwrap();
    let second = (times(&b, &cos) + times(&a, &sin)).unwrap();
    Tensor::cat(&[first, second], 3).unwrap()
}

/// Attention with its projections; `theta` where positions are rotary. `x`: [batch·seq, d_model].
pub fn attention(a: &Attention, theta: Option<f64>, params: &Params, x: &Tensor, mb: &MicroBatch) -> Tensor {
    let (batch, seq, hd) = (mb.batch, mb.seq, a.heads.width);
    let (queries, kv) = (a.heads.queries, a.heads.kv);
    let qkv = linear(&a.qkv, params, x);
    let part = |first: usize, heads: usize| {
        let part = qkv.narrow(1, first * hd, heads * hd).unwrap();
        part.reshape((batch, seq, heads, hd)).unwrap().transpose(1, 2).unwrap().contiguous().unwrap()
    };
    let (mut q, mut k, v) = (part(0, queries), part(queries, kv), part(queries + kv, kv));
    if let Some(theta) = theta {
        (q, k) = (rotate(&q, theta), rotate(&k, theta));
    }
    // Query head h reads key-value head h / group.
    let repeat = |x: &Tensor| {
        let x = x.unsqueeze(2).unwrap().broadcast_as((batch, kv, queries / kv, seq, hd)).unwrap();
        x.contiguous().unwrap().reshape((batch, queries, seq, hd)).unwrap()
    };
    let (k, v) = (repeat(&k), repeat(&v));
    let mut scores =
        (q.matmul(&k.transpose(2, 3).unwrap().contiguous().unwrap()).unwrap() / (hd as f64).sqrt()).unwrap();
    if a.mask != Mask::Full {
        let is_seen = |n: usize| a.mask.keys(n / seq, seq).contains(&(n % seq));
        let unseen: Vec<f64> = (0..seq * seq).map(|n| if is_seen(n) { 0.0 } else { -1e30 }).collect();
        let unseen = Tensor::from_vec(unseen, (seq, seq), x.device()).unwrap();
        scores = scores.broadcast_add(&unseen).unwrap();
    }
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

/// GELU's tanh form, ReLU or its square with dropout, or SwiGLU, between two projections.
pub fn mlp(m: &Mlp, params: &Params, x: &Tensor, mb: &MicroBatch) -> Tensor {
    match m {
        Mlp::Plain { up, activation: Activation::Relu, dropout: site, down } => {
            linear(down, params, &dropout(site, mb, &linear(up, params, x).relu().unwrap()))
        }
        Mlp::Plain { up, activation: Activation::Relu2, dropout: site, down } => {
            let y = linear(up, params, x).relu().unwrap().sqr().unwrap();
            linear(down, params, &dropout(site, mb, &y))
        }
        Mlp::Plain { up, activation: Activation::Gelu, dropout: site, down } => {
            let x = linear(up, params, x);
            let inner = (&x + (x.powf(3.0).unwrap() * 0.044_715).unwrap()).unwrap();
            let tanh = (inner * (2.0 / std::f64::consts::PI).sqrt()).unwrap().tanh().unwrap();
            linear(down, params, &dropout(site, mb, &((x * 0.5).unwrap() * (tanh + 1.0).unwrap()).unwrap()))
        }
        Mlp::SwiGlu { gate_up, down } => {
            let both = linear(gate_up, params, x);
            let width = both.dims2().unwrap().1 / 2;
            let (gate, up) = (both.narrow(1, 0, width).unwrap(), both.narrow(1, width, width).unwrap());
            let sigmoid = (gate.neg().unwrap().exp().unwrap() + 1.0).unwrap().recip().unwrap();
            linear(down, params, &((gate * sigmoid).unwrap() * up).unwrap())
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
    dropout(&e.dropout, mb, &x)
}

/// Logits.
pub fn head(h: &Head, params: &Params, x: &Tensor) -> Tensor {
    match &h.norm {
        Some(n) => linear(&h.project, params, &norm(n, params, x)),
        None => linear(&h.project, params, x),
    }
}

/// A transformer layer, with its norms before or after the residual sums.
pub fn layer(l: &TransformerLayer, theta: Option<f64>, params: &Params, x: &Tensor, mb: &MicroBatch) -> Tensor {
    if l.norm_place == NormPlace::Post {
        let attended = dropout(&l.dropout[0], mb, &attention(&l.attention, theta, params, x, mb));
        let x = norm(&l.norm1, params, &(x + attended).unwrap());
        let fed = dropout(&l.dropout[1], mb, &mlp(&l.mlp, params, &x, mb));
        return norm(&l.norm2, params, &(&x + fed).unwrap());
    }
    let attended = attention(&l.attention, theta, params, &norm(&l.norm1, params, x), mb);
    let x = (x + dropout(&l.dropout[0], mb, &attended)).unwrap();
    let fed = mlp(&l.mlp, params, &norm(&l.norm2, params, &x), mb);
    (&x + dropout(&l.dropout[1], mb, &fed)).unwrap()
}

/// Logits of a whole model, assembled from the parameters' names, without dropout.
pub fn model(spec: &ModelSpec, params: &Params, mb: &MicroBatch) -> Tensor {
    let at = |name: &str| params.layout.index(name).unwrap();
    let off = DropoutSite::new(0, "off", 0.0);
    let one = |prefix: String, bias: bool| Linear {
        weight: at(&format!("{prefix}.weight")),
        stacked: 1,
        bias: bias.then(|| at(&format!("{prefix}.bias"))),
    };
    let gpt2 = spec.family == Family::Gpt2;
    let normed = |prefix: String| {
        let weight = at(&format!("{prefix}.weight"));
        Norm { weight, bias: gpt2.then(|| at(&format!("{prefix}.bias"))), eps: spec.norm_eps }
    };
    let table = if gpt2 { "transformer.wte" } else { "model.embed_tokens" };
    let variant = &spec.options;
    let positions = match variant.positions {
        _ if !gpt2 => Positions::None,
        PositionKind::Learned => Positions::Learned(at("transformer.wpe.weight")),
        PositionKind::Sinusoidal => {
            Positions::Fixed(Tensor::zeros((1, spec.d_model), params.flat.dtype(), params.flat.device()).unwrap())
        }
    };
    let tokens = at(&format!("{table}.weight"));
    let scale = variant.embedding_scale.then(|| (spec.d_model as f64).sqrt());
    let mut x = embedding(&Embedding { tokens, scale, positions, dropout: off }, params, mb);
    for i in 0..spec.layers {
        let l = if gpt2 {
            let p = format!("transformer.h.{i}");
            TransformerLayer {
                norm_place: variant.norm,
                norm1: normed(format!("{p}.ln_1")),
                attention: Attention {
                    qkv: one(format!("{p}.attn.c_attn"), true),
                    out: one(format!("{p}.attn.c_proj"), true),
                    heads: spec.attention_heads(),
                    mask: Mask::Causal,
                    rope: None,
                    dropout: off,
                },
                norm2: normed(format!("{p}.ln_2")),
                mlp: Mlp::Plain {
                    up: one(format!("{p}.mlp.c_fc"), true),
                    activation: variant.activation,
                    dropout: off,
                    down: one(format!("{p}.mlp.c_proj"), true),
                },
                dropout: [off, off],
                recompute: Recompute::None,
            }
        } else {
            let p = format!("model.layers.{i}");
            TransformerLayer {
                norm_place: NormPlace::Pre,
                norm1: normed(format!("{p}.input_layernorm")),
                attention: Attention {
                    qkv: Linear { stacked: 3, ..one(format!("{p}.self_attn.q_proj"), false) },
                    out: one(format!("{p}.self_attn.o_proj"), false),
                    heads: spec.attention_heads(),
                    mask: Mask::Causal,
                    rope: None,
                    dropout: off,
                },
                norm2: normed(format!("{p}.post_attention_layernorm")),
                mlp: Mlp::SwiGlu {
                    gate_up: Linear { stacked: 2, ..one(format!("{p}.mlp.gate_proj"), false) },
                    down: one(format!("{p}.mlp.down_proj"), false),
                },
                dropout: [off, off],
                recompute: Recompute::None,
            }
        };
        x = layer(&l, (!gpt2).then_some(spec.rope_theta), params, &x, mb);
    }
    let last = if gpt2 { "transformer.ln_f" } else { "model.norm" };
    let project = if spec.tie_embeddings { table } else { "lm_head" };
    let bias = variant.head_bias.then(|| at("lm_head.bias"));
    let project = Linear { bias, ..one(project.into(), false) };
    head(&Head { norm: variant.final_norm.then(|| normed(last.into())), project }, params, &x)
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
