//! Evaluation, multiple choice, decoding and diagnosis chunk by chunk and shared by replicas, against the whole model: equal
//! to the bit.

use crate::common::pipeline::{Pipeline, padded_micro_batch, pipelines, specs, weights, whole};
use crate::common::{below, values, with_values};
use candle_core::{DType, Tensor};
use runner_compute::model::{Output, Stream};
use runner_compute::nn::MicroBatch;
use runner_data::{DataRequest, Prepared, prepare};
use runner_executor::ExecError;
use runner_executor::eval::{
    Batches, ChoiceBatches, ChoiceScore, ChunkDecoder, LossBatches, TokenFeed, continue_prompt, generate,
    indices_of_replica, run_all_batches,
};
use runner_spec::data::{ChoiceItem, Rows};
use runner_spec::experiment::{Data, Layout, Samples, Source, Tokenizer, Validation};
use runner_spec::model::ModelSpec;

/// Evaluates a micro-batch through all stages, without keeping what a backward needs.
fn evaluate(pipeline: &Pipeline, mb: &MicroBatch) -> Vec<f32> {
    let mut x = None;
    for (rank, model) in &pipeline.stages {
        let input = x.take().map(|packed| model.unpacked(packed, model.range.start).unwrap());
        match model.evaluate(&pipeline.ranks[*rank].params, input, mb).unwrap() {
            Output::Hidden(y) => x = Some(y.packed().unwrap()),
            Output::Losses(losses) => return losses.read().unwrap(),
        }
    }
    panic!("{}: no head", pipeline.name)
}

#[test]
fn evaluation_through_chunks_is_that_of_the_whole() {
    for spec in specs() {
        for dtype in [DType::F64, DType::BF16] {
            let one = whole(&spec, dtype);
            let mb = MicroBatch { training: false, ..padded_micro_batch(&spec, 0) };
            let expected = one.stages[0].1.losses(&one.ranks[0].params, &mb).unwrap();
            assert!(expected.iter().any(|&l| l > 0.0));
            for pipeline in pipelines(&spec, dtype) {
                assert_eq!(evaluate(&pipeline, &mb), expected, "{}", pipeline.name);
            }
            let unmatched = MicroBatch { targets: vec![0; 3], ..mb };
            assert!(one.stages[0].1.losses(&one.ranks[0].params, &unmatched).is_err(), "targets for other tokens");
        }
    }
}

/// Replicas run their shares, each through the pipeline; results are added in an order that is not the batches'.
fn through(batches: &dyn Batches, pipeline: &Pipeline, replicas: usize) -> Vec<f64> {
    let mut total = vec![0.0; batches.value_count()];
    for replica in (0..replicas).rev() {
        let mut values = vec![0.0; batches.value_count()];
        for index in indices_of_replica(batches.count(), replica, replicas) {
            let mut rows = Rows::default();
            batches.fill(index, &mut rows).unwrap();
            let first = &pipeline.stages[0].1;
            let mb = first.micro_batch(&rows.inputs, rows.targets.clone(), rows.length).unwrap();
            batches.record_losses(index, &rows, &evaluate(pipeline, &mb), &mut values).unwrap();
        }
        total.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
    }
    total
}

fn bits(values: &[f64]) -> Vec<u64> {
    values.iter().map(|v| v.to_bits()).collect()
}

/// `count` items with contexts and endings of many lengths, some beyond the context length.
fn items(spec: &ModelSpec, count: usize) -> Vec<ChoiceItem> {
    let ids = |what: &str, i: usize, n: usize| below(&format!("{what} {i}"), n, spec.vocab_size);
    let ending = |i: usize, e: usize| ids("ending", 4 * i + e, 1 + (3 * i + 5 * e) % 7);
    (0..count)
        .map(|i| ChoiceItem {
            context: ids("context", i, 1 + i * 7 % 11),
            endings: (0..2 + i % 3).map(|e| ending(i, e)).collect(),
            characters: (0..2 + i % 3).map(|e| 1 + (5 * i + 3 * e) % 11).collect(),
            label: i % 2,
            ..ChoiceItem::default()
        })
        .collect()
}

#[test]
fn multiple_choice_does_not_depend_on_replicas_and_stages() {
    let count = 300;
    for spec in [&specs()[0], &specs()[3]] {
        let one = whole(spec, DType::F64);
        let items = items(spec, count);
        let batches = ChoiceBatches::new(&items, spec.context_length);
        assert!(
            batches.count() > 2,
            "several batches, of at most {} tokens",
            runner_spec::program::EVAL_TOKENS_PER_FORWARD
        );
        let expected = through(&batches, &one, 1);
        let (model, params) = (&one.stages[0].1, &one.ranks[0].params);
        assert_eq!(run_all_batches(&batches, model, params).unwrap(), expected);
        let score = ChoiceScore::new(&batches.scored_items(&expected).unwrap());
        assert!(score.right > 0 && score.right < count && score.right != score.right_norm, "{score:?}");
        let chunks = [0..1, 1..3, 3..spec.block_count()];
        let three = Pipeline::new(spec, &weights(spec, DType::F64), &chunks, 2);
        for replicas in 1..=5 {
            for pipeline in [&one, &three] {
                assert_eq!(bits(&through(&batches, pipeline, replicas)), bits(&expected), "{replicas} replicas");
            }
        }
    }
}

/// Each candidate's loss in a batch is its loss alone: nothing of its neighbours or its padding is in it. f32 losses are
/// added, each off by rounding from other lengths of the same sums.
#[test]
fn a_candidate_in_a_batch_scores_as_alone() {
    let spec = &specs()[0];
    let one = whole(spec, DType::F64);
    let items = items(spec, 300);
    let batches = ChoiceBatches::new(&items, spec.context_length);
    assert!(batches.count() > 2, "several batches");
    let together = through(&batches, &one, 1);
    let mut endings = 0;
    for (i, item) in items.iter().enumerate() {
        for ending in &item.endings {
            if i % 7 == 0 {
                let alone = [ChoiceItem { endings: vec![ending.clone()], characters: vec![1], ..item.clone() }];
                let partial = through(&ChoiceBatches::new(&alone, spec.context_length), &one, 1);
                crate::common::assert_close_relative("ending", &together[endings..=endings], &partial, 1e-6);
            }
            endings += 1;
        }
    }
    assert_eq!(endings, together.len());
}

/// A short text, byte by byte, with a validation split.
fn text(folder: &std::path::Path) -> Prepared {
    let file = folder.join("text.txt");
    std::fs::write(&file, "the cat sat on the mat and the dog sat on the log. ".repeat(12)).unwrap();
    let data = Data {
        tokenizer: Tokenizer::Bytes {},
        train: Source::Text { files: vec![file] },
        validation: Some(Validation::Fraction(0.5)),
        layout: Layout::packed(10),
        shuffle: true,
        drop_last: false,
        epoch_rows: None,
        position: None,
    };
    let request = DataRequest {
        data: &data,
        tasks: &[],
        test: None,
        cache_dir: &folder.join("cache"),
        vocab_size: None,
        recorded_tokenizer: None,
    };
    prepare(&request, &|_| {}).unwrap()
}

#[test]
fn validation_loss_does_not_depend_on_replicas_and_stages() {
    let folder = tempfile::tempdir().unwrap();
    let prepared = text(folder.path());
    let split = prepared.dataset.validation.as_ref().unwrap();
    let spec = ModelSpec { vocab_size: 260, ..specs()[0].clone() };
    let one = whole(&spec, DType::F64);
    let three = Pipeline::new(&spec, &weights(&spec, DType::F64), &[0..2, 2..3, 3..5], 3);
    // The last batch is smaller; fewer batches than the split has; fewer than replicas; rows that fill no whole batch.
    for (count, micro_batch) in [(u64::MAX, 4), (6, 2), (3, 3), (7, 3)] {
        let batches = LossBatches::new(split, count, micro_batch, false);
        let model = &one.stages[0].1;
        let expected = batches.finish(&run_all_batches(&batches, model, &one.ranks[0].params).unwrap()).unwrap();
        let rows = split.rows().min(count);
        assert_eq!(expected.tokens, rows * 10);
        for replicas in 1..=4 {
            for pipeline in [&one, &three] {
                let ours = batches.finish(&through(&batches, pipeline, replicas)).unwrap();
                assert_eq!((ours.loss.to_bits(), ours.tokens), (expected.loss.to_bits(), expected.tokens));
            }
        }
    }
    let batches = LossBatches::new(split, 4, 2, false);
    assert!(matches!(batches.finish(&vec![0.0; batches.value_count()]), Err(ExecError::Request(_))), "nothing was run");
    let mut bad = vec![0.0; batches.value_count()];
    bad.fill(f64::NAN);
    assert!(matches!(batches.finish(&bad), Err(ExecError::ResultNotFinite(_))));
}

/// All stages of a pipeline, one after the other.
struct Stages<'a>(Vec<ChunkDecoder<'a>>);

impl<'a> Stages<'a> {
    fn new(pipeline: &'a Pipeline) -> Self {
        let stage = |(rank, model): &'a (usize, _)| ChunkDecoder::new(model, &pipeline.ranks[*rank].params);
        Self(pipeline.stages.iter().map(stage).collect())
    }
}

impl Stages<'_> {
    fn feed(&mut self, feed: &TokenFeed) -> Result<Tensor, ExecError> {
        let mut x = None;
        for stage in &mut self.0 {
            x = Some(stage.extend(feed, x)?);
        }
        Ok(x.unwrap())
    }
}

#[test]
fn decoding_by_stages_is_decoding() {
    for spec in specs() {
        for dtype in [DType::F64, DType::BF16] {
            let one = whole(&spec, dtype);
            let (model, params) = (&one.stages[0].1, &one.ranks[0].params);
            // A prefill, single tokens, a new start in the same cache, then another batch and capacity.
            let feeds: Vec<TokenFeed> =
                [(2, 5, 0, 12), (2, 1, 5, 12), (2, 2, 6, 12), (2, 4, 0, 12), (2, 1, 4, 12), (3, 2, 0, 7)]
                    .into_iter()
                    .map(|(batch, n, start, capacity)| {
                        let ids = below(&format!("feed {start} {capacity}"), batch * n, spec.vocab_size);
                        TokenFeed { ids, batch, start, capacity }
                    })
                    .collect();
            let mut cache = model.new_cache(2, 12, &params.flat).unwrap();
            let mut expected = Vec::new();
            for feed in &feeds {
                if (cache.batch, cache.capacity) != (feed.batch, feed.capacity) {
                    cache = model.new_cache(feed.batch, feed.capacity, &params.flat).unwrap();
                }
                cache.length = feed.start;
                let logits = model.extend_chunk(params, &feed.ids, None, &mut cache).unwrap();
                assert_eq!(logits.dims(), [feed.batch, spec.vocab_size]);
                expected.push(values(&logits));
            }
            for pipeline in pipelines(&spec, dtype) {
                let mut stages = Stages::new(&pipeline);
                for (feed, expected) in feeds.iter().zip(&expected) {
                    assert!(values(&stages.feed(feed).unwrap()) == *expected, "{}", pipeline.name);
                }
            }
        }
    }
}

#[test]
fn generation_by_stages_is_generation() {
    let folder = tempfile::tempdir().unwrap();
    let tokenizer = text(folder.path()).tokenizer;
    for base in specs() {
        let spec = ModelSpec { vocab_size: 260, ..base };
        // Longer than the context of 12, so the window starts again.
        let samples = Samples {
            every: None,
            prompts: vec!["the cat".into(), String::new(), "a longer prompt than the context".into()],
            count: 3,
            max_tokens: 20,
            top_k: None,
            temperature: 1.0,
            top_p: None,
            seed: 1,
        };
        let one = whole(&spec, DType::F64);
        let expected = generate(&one.stages[0].1, &one.ranks[0].params, &tokenizer, &samples).unwrap();
        assert_eq!(expected.len(), 9);
        assert_ne!(expected[0].text, expected[1].text);
        let chunks = [0..1, 1..3, 3..spec.block_count()];
        let pipeline = Pipeline::new(&spec, &weights(&spec, DType::F64), &chunks, 2);
        let mut stages = Stages::new(&pipeline);
        let ours: Vec<_> = samples
            .batches()
            .flat_map(|batch| {
                continue_prompt(&mut |feed| stages.feed(feed), &spec, &tokenizer, &samples, &batch).unwrap()
            })
            .collect();
        assert_eq!(ours, expected, "{}", pipeline.name);
        let first = (&pipeline.stages[0].1, &pipeline.ranks[0].params);
        assert!(generate(first.0, first.1, &tokenizer, &samples).is_err(), "a chunk");
    }
}

#[test]
fn feeds_that_do_not_fit_are_errors() {
    let spec = &specs()[0];
    let pipeline = Pipeline::new(spec, &weights(spec, DType::F64), &[0..2, 2..5], 2);
    let [(_, first), (_, second)] = pipeline.stages.as_slice() else { panic!("two stages") };
    let [a, b] = pipeline.ranks.as_slice() else { panic!("two ranks") };
    let feed = TokenFeed { ids: vec![1, 2, 3, 4], batch: 2, start: 0, capacity: 4 };
    let mut stage = ChunkDecoder::new(first, &a.params);
    let hidden = stage.extend(&feed, None).unwrap();
    assert_eq!(hidden.dims(), [4, spec.d_model]);
    assert!(stage.extend(&TokenFeed { start: 3, ..feed.clone() }, None).is_err(), "a gap behind two tokens");
    assert!(stage.extend(&TokenFeed { ids: vec![1; 10], ..feed.clone() }, None).is_err(), "more than the capacity");
    assert!(stage.extend(&TokenFeed { ids: vec![1; 3], ..feed.clone() }, None).is_err(), "no rows");
    assert!(stage.extend(&TokenFeed { ids: vec![], batch: 0, ..feed.clone() }, None).is_err(), "nothing");
    assert!(stage.extend(&feed, Some(hidden.clone())).is_err(), "hidden input for the embedding");
    let mut stage = ChunkDecoder::new(second, &b.params);
    assert!(stage.extend(&feed, None).is_err(), "ids for a layer");
    assert_eq!(stage.extend(&feed, Some(hidden)).unwrap().dims(), [2, spec.vocab_size]);
    let narrow = crate::common::random("narrow", (4, spec.d_model - 1), 1.0);
    let mut cache = second.new_cache(2, 4, &b.params.flat).unwrap();
    assert!(second.extend_chunk(&b.params, &[1; 4], Some(narrow), &mut cache).is_err(), "another width");
    assert_eq!(cache.length, 0, "an error feeds nothing");
}

#[test]
fn a_bad_number_is_found_in_its_chunk() {
    for spec in specs().into_iter().filter(|spec| spec.options.sums.is_empty()) {
        let params = weights(&spec, DType::F64);
        let broken = |name: &str| {
            let mut flat = values(&params.flat);
            let entry = params.layout.entries.iter().find(|e| e.spec.name.contains(name)).unwrap();
            flat[entry.offset] = f64::INFINITY;
            with_values(&params.layout, flat, DType::F64)
        };
        let mb = padded_micro_batch(&spec, 0);
        let shape = (mb.batch * mb.seq, spec.d_model);
        let hidden = crate::common::random("hidden", shape, 1.0);
        let nan = (hidden.clone() * f64::NAN).unwrap();
        let of = |params, stage: usize, input: Option<&Tensor>| {
            let pipeline = Pipeline::new(&spec, params, &[0..1, 1..3, 3..5], 3);
            let (rank, model) = &pipeline.stages[stage];
            model.first_block_not_finite(&pipeline.ranks[*rank].params, input.cloned().map(Stream::from), &mb).unwrap()
        };
        let said = |what: &str| Some(what.to_owned());
        assert_eq!(of(&params, 0, None), None);
        assert_eq!(of(&params, 1, Some(&hidden)), None);
        assert_eq!(of(&params, 2, Some(&hidden)), said("logits of the head"), "only the head remains");
        assert_eq!(of(&params, 1, Some(&nan)), said("output of the embedding, received from another stage"));
        let layer = if spec.dropout > 0.0 { "h.1." } else { "layers.1." };
        assert_eq!(of(&broken(layer), 1, Some(&hidden)), said("output of layer 1"));
        let (table, mut mb) = (broken(if spec.dropout > 0.0 { "wte" } else { "embed_tokens" }), mb.clone());
        mb.ids = mb.ids.zeros_like().unwrap();
        mb.training = false;
        let pipeline = Pipeline::new(&spec, &table, &[0..1, 1..5], 2);
        let found = pipeline.stages[0].1.first_block_not_finite(&pipeline.ranks[0].params, None, &mb).unwrap();
        assert_eq!(found, said("output of the embedding"));
    }
}
