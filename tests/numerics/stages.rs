//! Chunks of a model, segments of a backward and the split backward against the whole model in one pass.

use std::sync::Arc;

use crate::common::WholePasses as _;
use crate::common::pipeline::{Pipeline, cuts, padded_micro_batch, pipelines, specs, weights, whole};
use crate::common::{assert_close, largest, values, zeros};
use candle_core::{DType, Tensor};
use runner_compute::model::{Model, Output, Params, Stream, init};
use runner_spec::model::layout::ParamLayout;
use runner_spec::model::stage::{stage_parameters, tied_copy, tied_original};
use runner_spec::model::{ModelSpec, parameters};

/// A tied embedding's gradient is a sum of four terms here, per chunk two: another order rounds otherwise, by a few times
/// 1.1e-16 of the largest element in f64, or 6e-8 in f32.
fn rounding(dtype: DType) -> f64 {
    if dtype == DType::F64 { 1e-15 } else { 5e-7 }
}

/// Gradients equal to the bit, but for a tied embedding's.
fn assert_gradients(what: &str, spec: &ModelSpec, layout: &ParamLayout, dtype: DType, ours: &[f64], whole: &[f64]) {
    for entry in &layout.entries {
        let (a, b) = (&ours[entry.range()], &whole[entry.range()]);
        assert!(largest(b) > 0.0, "{}: no gradient", entry.spec.name);
        let tolerance = if spec.tie_embeddings && entry.offset == 0 { rounding(dtype) * largest(b) } else { 0.0 };
        assert_close(&format!("{what}: gradient of {}", entry.spec.name), a, b, tolerance);
    }
}

/// Trains on two micro-batches, one after the other, and returns their losses.
fn train(pipeline: &Pipeline, spec: &ModelSpec) -> Vec<Vec<f32>> {
    let step = |index| {
        let mb = padded_micro_batch(spec, index);
        let (losses, saved) = pipeline.forward(&mb);
        pipeline.backward(saved, &mb);
        losses
    };
    vec![step(0), step(1)]
}

#[test]
fn chunks_are_the_whole_model() {
    for spec in specs() {
        for dtype in [DType::F64, DType::BF16] {
            let one = whole(&spec, dtype);
            let layout = one.ranks[0].params.layout.clone();
            let losses = train(&one, &spec);
            let expected = values(&one.ranks[0].grads.flat);
            for pipeline in pipelines(&spec, dtype) {
                assert_eq!(train(&pipeline, &spec), losses, "{}: losses", pipeline.name);
                let ours = pipeline.gradients(&spec, &layout);
                assert_gradients(&pipeline.name, &spec, &layout, dtype, &ours, &expected);
            }
        }
    }
}

/// The weights' passes of both micro-batches after all other work, segment by segment.
#[test]
fn the_split_backward_is_the_backward() {
    for spec in specs() {
        for dtype in [DType::F64, DType::BF16] {
            for (index, pipeline) in pipelines(&spec, dtype).iter().enumerate() {
                train(pipeline, &spec);
                let once: Vec<_> = pipeline.ranks.iter().map(|r| values(&r.grads.flat)).collect();
                let grads: Vec<Params> = pipeline.ranks.iter().map(|r| zeros(&r.params)).collect();
                let mut later = Vec::new();
                for mb in [padded_micro_batch(&spec, 0), padded_micro_batch(&spec, 1)] {
                    let (_, saved) = pipeline.forward(&mb);
                    let mut d: Option<Tensor> = None;
                    for ((rank, model), saved) in pipeline.stages.iter().zip(saved).rev() {
                        let dy = d.take().map(|packed| model.unpacked(packed, model.range.end).unwrap());
                        let (dx, work) = model.backward_input(&pipeline.ranks[*rank].params, saved, dy, &mb).unwrap();
                        assert_eq!(work.len(), model.range.len());
                        later.push((*rank, model, work));
                        d = dx.map(|dx| dx.packed().unwrap());
                    }
                    assert!(d.is_none());
                }
                assert!(grads.iter().all(|g| largest(&values(&g.flat)) == 0.0), "the input's pass adds nothing");
                for (rank, model, mut work) in later {
                    // In one go, or block by block.
                    let segment = if index % 2 == 0 { model.range.len() } else { 1 };
                    let mut end = model.range.end;
                    while end > model.range.start {
                        model.backward_weight(&grads[rank], &mut work, end - segment..end).unwrap();
                        end -= segment;
                    }
                    assert!(work.is_empty());
                }
                for (grads, once) in grads.iter().zip(&once) {
                    assert!(values(&grads.flat) == *once, "{}", pipeline.name);
                }
            }
        }
    }
}

/// After a segment, the gradients of its blocks are final: a bucket of them may be reduced.
#[test]
fn segments_finish_their_blocks_gradients() {
    for spec in specs() {
        let one = whole(&spec, DType::F64);
        let (rank, model, mb) = (&one.ranks[0], &one.stages[0].1, padded_micro_batch(&spec, 0));
        let (_, mut saved) = one.forward(&mb);
        one.backward(saved, &mb);
        let expected = values(&rank.grads.flat);
        for segments in (1..=3).flat_map(|n| cuts(spec.block_count(), n)) {
            let grads = zeros(&rank.params);
            saved = one.forward(&mb).1;
            let mut d = None;
            for segment in segments.into_iter().rev() {
                let saved = &mut saved[0];
                d = model.backward_blocks(&rank.params, &grads, saved, d, &mb, segment.clone()).unwrap();
                assert_eq!(saved.len(), segment.start);
                assert_eq!(d.is_some(), segment.start > 0);
                let now = values(&grads.flat);
                for entry in rank.params.layout.entries.iter().filter(|e| e.spec.block >= segment.start) {
                    assert!(now[entry.range()] == expected[entry.range()], "{} after {segment:?}", entry.spec.name);
                }
                for entry in rank.params.layout.entries.iter().filter(|e| e.spec.block < segment.start) {
                    let tied = spec.tie_embeddings && entry.offset == 0;
                    assert!(tied || largest(&now[entry.range()]) == 0.0, "{} is early", entry.spec.name);
                }
            }
        }
    }
}

/// Finite differences of one chunk's L = Σ r·y + nothing of the others, over what it is given: the tolerance is that of
/// `gradients.rs` (1e-8 of the sum of L's terms' magnitudes).
#[test]
fn a_middle_chunk_has_the_gradient_of_its_input() {
    const H: f64 = 1e-5;
    for spec in specs() {
        let params = weights(&spec, DType::F64);
        let pipeline = Pipeline::new(&spec, &params, &[0..1, 1..3, 3..spec.block_count()], 3);
        let (rank, model, mb) = (&pipeline.ranks[1], &pipeline.stages[1].1, padded_micro_batch(&spec, 0));
        let shape = (mb.batch * mb.seq, spec.width_to(1));
        let after = (mb.batch * mb.seq, spec.width_to(3));
        let (x, r) = (crate::common::random("x", shape, 1.0), crate::common::random("r", after, 1.0));
        let output = |x: &Tensor| match model.forward(&rank.params, Some(x.clone()), &mb).unwrap() {
            (Output::Hidden(y), saved) => (y.packed().unwrap(), saved),
            (Output::Losses(_), _) => panic!("no head here"),
        };
        let terms =
            |x: &Tensor| -> Vec<f64> { values(&output(x).0).iter().zip(values(&r)).map(|(y, r)| y * r).collect() };
        let magnitude: f64 = terms(&x).iter().map(|t| t.abs()).sum();
        let (dx, mut work) =
            model.backward_input(&rank.params, output(&x).1, Some(model.unpacked(r.clone(), 3).unwrap()), &mb).unwrap();
        let dx = values(&dx.unwrap().packed().unwrap());
        model.backward_weight(&rank.grads, &mut work, 1..3).unwrap();
        assert!(largest(&values(&rank.grads.flat)) > 0.0);
        assert!(largest(&dx) > 1e-6 * magnitude, "the check must be able to fail");
        let flat = values(&x);
        for i in crate::common::below("elements", 40, flat.len()) {
            let at = |h: f64| -> f64 {
                let mut moved = flat.clone();
                moved[i as usize] += h;
                terms(&Tensor::from_vec(moved, shape, x.device()).unwrap()).iter().sum()
            };
            let numeric = (at(H) - at(-H)) / (2.0 * H);
            assert_close("dx", &[dx[i as usize]], &[numeric], 1e-8 * magnitude);
        }
    }
}

#[test]
fn ranks_hold_every_parameter_once() {
    for spec in specs() {
        for pipeline in pipelines(&spec, DType::F64) {
            let (mut held, mut copies, mut originals) = (Vec::new(), 0, 0);
            for rank in &pipeline.ranks {
                let layout = &rank.params.layout;
                let copy = tied_copy(layout, &spec, &rank.chunks);
                let own = layout.entries.iter().enumerate().filter(|(i, _)| copy != Some(*i));
                held.extend(own.map(|(_, e)| e.spec.clone()));
                copies += usize::from(copy.is_some());
                originals += usize::from(tied_original(layout, &spec, &rank.chunks).is_some());
                let Some(copy) = copy else { continue };
                let (entry, whole) = (&layout.entries[copy], ParamLayout::new(parameters(&spec)));
                assert_eq!(entry.spec.block, spec.layers + 1, "the copy is cut with the head");
                let mut starts = [vec![0.0_f32; entry.spec.len()], vec![0.0; entry.spec.len()]];
                init::fill(&mut starts[0], entry, 3);
                init::fill(&mut starts[1], whole.entry(&entry.spec.name).unwrap(), 3);
                assert_eq!(starts[0], starts[1], "the copy starts as its original");
            }
            assert_eq!((copies, copies), (originals, usize::from(copies > 0)), "{}", pipeline.name);
            let mut expected = parameters(&spec);
            expected.sort_by(|a, b| a.name.cmp(&b.name));
            held.sort_by(|a, b| a.name.cmp(&b.name));
            assert_eq!(held, expected, "{}", pipeline.name);
        }
        let (first, last) = (0..1, spec.layers + 1..spec.layers + 2);
        assert_eq!(stage_parameters(&spec, &[last, first.clone(), 1..spec.layers + 1]), parameters(&spec), "any order");
        let apart = ParamLayout::new(stage_parameters(&spec, std::slice::from_ref(&first)));
        assert_eq!(tied_original(&apart, &spec, &[first]).is_some(), spec.tie_embeddings);
    }
}

#[test]
fn inputs_that_do_not_fit_are_errors() {
    for spec in specs().into_iter().filter(|spec| spec.options.sums.is_empty()) {
        let params = weights(&spec, DType::F64);
        let head = spec.block_count() - 1;
        let pipeline = Pipeline::new(&spec, &params, &[0..2, 2..head + 1], 2);
        let mb = padded_micro_batch(&spec, 0);
        let [(_, first), (_, second)] = pipeline.stages.as_slice() else { panic!("two stages") };
        let [a, b] = pipeline.ranks.as_slice() else { panic!("two ranks") };
        let hidden = crate::common::random("hidden", (mb.batch * mb.seq, spec.d_model), 1.0);
        let narrow = crate::common::random("hidden", (mb.batch * mb.seq, spec.d_model - 1), 1.0);

        assert!(first.forward(&a.params, Some(hidden.clone()), &mb).is_err(), "input for the embedding");
        assert!(second.forward(&b.params, None, &mb).is_err(), "no input for a layer");
        assert!(second.forward(&b.params, Some(narrow.clone()), &mb).is_err(), "input of another width");
        assert!(second.evaluate(&b.params, None, &mb).is_err());
        assert!(second.evaluate(&b.params, Some(narrow.clone().into()), &mb).is_err());
        assert!(second.logits(&b.params, &mb).is_err() && first.losses(&a.params, &mb).is_err());

        let saved = || second.forward(&b.params, Some(hidden.clone()), &mb).unwrap().1;
        let run = |saved: &mut Vec<_>, d: Option<&Tensor>, blocks| {
            second.backward_blocks(&b.params, &b.grads, saved, d.cloned().map(Stream::from), &mb, blocks)
        };
        assert!(run(&mut saved(), None, 2..head).is_err(), "the head comes first");
        assert!(run(&mut saved(), None, 1..head + 1).is_err(), "another chunk's block");
        assert!(run(&mut saved(), None, head + 1..head).is_err(), "a range that is none");
        assert!(run(&mut saved(), Some(&hidden), head..head + 1).is_err(), "the head is given no gradient");
        assert!(run(&mut Vec::new(), None, 2..head + 1).is_err(), "nothing is saved");
        let mut rest = saved();
        let d = run(&mut rest, None, head..head + 1).unwrap();
        assert!(run(&mut rest, None, 2..head).is_err(), "a layer needs a gradient");
        let mut rest = saved();
        run(&mut rest, None, head..head + 1).unwrap();
        assert!(run(&mut rest, Some(&narrow), 2..head).is_err(), "a gradient of another width");
        let mut rest = saved();
        run(&mut rest, None, head..head + 1).unwrap();
        assert!(run(&mut rest, d.as_ref().map(|d| &d.x), head..head + 1).is_err(), "the head is done");
        assert!(
            run(&mut rest, d.as_ref().map(|d| &d.x), head..head).is_ok_and(|same| same.is_some()),
            "empty stages do no work"
        );
        let fewer = saved().into_iter().take(1).collect();
        assert!(second.backward(&b.params, &b.grads, fewer, None, &mb).is_err(), "too few activations");
        let (_, mut work) = second.backward_input(&b.params, saved(), None, &mb).unwrap();
        assert!(second.backward_weight(&b.grads, &mut work, 2..head).is_err(), "the head comes first");
        assert_eq!(work.len(), head - 1, "an error takes nothing");

        let layout = Arc::clone(&a.params.layout);
        let model = |range| Model::new(&spec, layout.clone(), range, 7, &params.flat);
        assert!(model(0..2).is_ok());
        assert!(model(1..1).is_err() && model(1..head + 2).is_err(), "no chunk");
        assert!(model(1..3).is_err(), "parameters of another rank");
    }
}
