//! The plots. Half of them end with something that was named before (who, what, where), half with something that
//! belongs to what was named (an animal's sound, a job's work).

use super::teller::{Story, Teller};
use super::words::{
    BOYS, COLORS, FOODS, FRAGILE, GIRLS, GROWN_UPS, HOBBIES, JOBS, MIXES, NEEDS, PETS, PLACES, SOUNDS, SPOTS, TOYS,
    TREATS, WEATHER,
};

pub(super) type Plot = fn(&mut Teller) -> Story;

pub(super) const PLOTS: [Plot; 13] =
    [lost, sound, weather, food, hobby, sorry, place, hide, mix, job, treat, gift, need];

/// Completes a story: `ending` makes the last sentence from the word that decides.
fn story(
    plot: &'static str,
    context: String,
    right: &str,
    others: [&str; 3],
    ending: impl Fn(&str) -> String,
) -> Story {
    Story { plot, context, ending: ending(right), wrong: others.map(ending) }
}

/// A pair of `pairs`, and three second halves that do not go with its first half.
fn pair(t: &mut Teller, pairs: &[(&'static str, &'static str)]) -> (&'static str, &'static str, [&'static str; 3]) {
    let (first, second) = t.pick(pairs);
    let seconds: Vec<_> = pairs.iter().map(|(_, second)| *second).collect();
    (first, second, t.others(&seconds, second, &[]))
}

fn lost(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, he_, his) = (child.name, child.he(), child.he_(), child.his());
    let (toy, color, helper) = (t.pick(&TOYS), t.pick(&COLORS), t.pick(&GROWN_UPS));
    let (spot, other_spot) = (t.pick(&SPOTS), t.pick(&["stairs", "table", "bench", "window"]));
    let had = t.say(&[
        format!("{he_} had a {color} {toy} and took it everywhere."),
        format!("The thing {he} loved most was {his} {color} {toy}."),
        format!("For {his} birthday {he} got a {color} {toy}."),
    ]);
    let gone = t.say(&[
        format!("One day the {toy} was gone."),
        format!("But one morning {name} could not find the {toy}."),
        format!("Then {he} lost the {toy} and began to cry."),
    ]);
    let looked = t.say(&[
        format!("{he_} looked by the {other_spot}, but it was not there."),
        format!("{he_} asked {his} {helper} for help."),
        format!("{name} and {his} {helper} looked by the {other_spot} and in the yard."),
    ]);
    let seen = t.say(&[
        format!("At last {he} saw something {color} behind the {spot}."),
        format!("\"Where is my {toy}?\" asked {name}. Then {he} looked behind the {spot}."),
        format!("Was the {toy} by the {spot}? {he_} went to see."),
    ]);
    let context = format!("{}{} {had} {gone} {looked} {seen}", t.opening(child), t.filler(child));
    let others = t.others(&TOYS, toy, &[]);
    let way = t.below(3);
    story("lost", context, toy, others, |word| match way {
        0 => format!("It was the {word}, and {name} was happy again."),
        1 => format!("{name} had found the {word} at last."),
        _ => format!("{name} picked up the {word} and laughed."),
    })
}

fn sound(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, he_) = (child.name, child.he(), child.he_());
    let pet = t.pick(&PETS);
    let (animal, sound, others) = pair(t, &SOUNDS);
    let had = t.say(&[
        format!("{he_} had a {animal} named {pet}."),
        format!("{his_} best friend was a {animal} called {pet}.", his_ = child.his_()),
        format!("One day {he} met a little {animal}. \"I will call you {pet},\" said {name}."),
    ]);
    let day = t.say(&[
        format!("One day {name} fell asleep in the grass, and the {animal} came to look."),
        format!("{name} and the {animal} played in the yard all day."),
        format!("When {name} came home, the {animal} ran to the gate."),
        format!("{name} hid a snack for the {animal}, and {pet} found it."),
    ]);
    let context = format!("{}{} {had}{} {day}", t.opening(child), t.filler(child), t.filler(child));
    let way = t.below(3);
    story("sound", context, sound, others, |word| match way {
        0 => format!("{pet} was so glad and said, \"{word}, {word}!\""),
        1 => format!("\"{word}!\" said {pet}, and {name} smiled.").replacen(word, &capital(word), 1),
        _ => format!("Then {pet} made a loud {word}."),
    })
}

fn weather(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, his) = (child.name, child.he(), child.his());
    let friend = t.friend(child).name;
    let (weather, act, others) = pair(t, &WEATHER);
    let day = t.say(&[
        format!("It was a {weather} day."),
        format!("One {weather} morning {name} woke up early."),
        format!("When {he} looked out of the window, the day was {weather}."),
    ]);
    let bored = t.say(&[
        format!("\"What can we do today?\" asked {friend}."),
        format!("{name} went to see {his} friend {friend}."),
        format!("{friend} came over to play."),
    ]);
    let idea = t.say(&[
        format!("\"I know what to do in {weather} weather,\" said {name}."),
        format!("{name} said it was a good day for fun, even if it was {weather}."),
        format!("They both liked {weather} days."),
    ]);
    let context = format!("{} {day}{} {bored} {idea}", t.opening(child), t.filler(child));
    let way = t.below(2);
    story("weather", context, act, others, |word| match way {
        0 => format!("So {name} and {friend} {word}."),
        _ => format!("The two friends {word} until dinner."),
    })
}

fn food(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, he_) = (child.name, child.he(), child.he_());
    let (animal, food, others) = pair(t, &FOODS);
    let place = t.pick(&["in the yard", "near the road", "by the gate", "under a tree", "on the path"]);
    let met = t.say(&[
        format!("One day {he} saw a {animal} {place}."),
        format!("{name} found a small {animal} {place}."),
        format!("A {animal} sat {place} and looked sad."),
    ]);
    let hungry = t.say(&[
        format!("\"Are you hungry?\" asked {name}. The {animal} nodded."),
        format!("The {animal} had not eaten all day."),
        format!("The {animal} was thin and very hungry."),
    ]);
    let home = t.say(&[
        format!("{name} ran home to get food for the {animal}."),
        format!("{he_} knew just what a {animal} likes."),
        format!("What does a {animal} eat? {name} knew it well."),
    ]);
    let context = format!("{}{} {met} {hungry} {home}", t.opening(child), t.filler(child));
    let way = t.below(3);
    story("food", context, food, others, |word| match way {
        0 => format!("{name} gave it {word} to eat."),
        1 => format!("Soon it was eating {word} and was happy."),
        _ => format!("\"I have some {word} for you,\" said {name}."),
    })
}

fn hobby(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, he_, his) = (child.name, child.he(), child.he_(), child.his());
    let helper = t.pick(&GROWN_UPS);
    let (verb, gift, others) = pair(t, &HOBBIES);
    let loved = t.say(&[
        format!("More than anything {he} loved to {verb}."),
        format!("Every day {he} wanted to {verb}."),
        format!("{he_} liked to {verb} when the day was done."),
    ]);
    let birthday = t.say(&[
        format!("Soon it was {his} birthday, a day to {verb} and play."),
        format!("One day {his} {helper} came with a box."),
        format!("At the party there was a big box from {his} {helper}."),
    ]);
    let open = t.say(&[
        format!("\"This will help you {verb},\" said {his} {helper}."),
        format!("\"Now you can {verb} all day,\" said {his} {helper}."),
        format!("\"Open it,\" said {his} {helper}. \"Now you can {verb} even more.\""),
    ]);
    let context = format!("{} {loved}{} {birthday} {open}", t.opening(child), t.filler(child));
    let way = t.below(3);
    story("hobby", context, gift, others, |word| match way {
        0 => format!("Inside was a new {word}."),
        1 => format!("{name} was happy to get a {word}."),
        _ => format!("It was a {word}, and {name} said thank you."),
    })
}

fn sorry(t: &mut Teller) -> Story {
    let child = t.child();
    let friend = t.friend(child);
    let (name, other, thing) = (child.name, friend.name, t.pick(&FRAGILE));
    let played = t.say(&[
        format!("{name} and {other} played in the house."),
        format!("One day {other} came to visit {name}."),
        format!("{name} had a friend named {other}."),
    ]);
    // Which of the two did it decides the ending.
    let culprit = if t.below(2) == 0 { child } else { friend };
    let (who, he) = (culprit.name, culprit.he());
    let innocent = if culprit == child { other } else { name };
    let broke = t.say(&[
        format!("{who} ran too fast and broke the {thing}."),
        format!("{who} threw a ball, and it hit the {thing}."),
        format!("{who} jumped, and down fell the {thing}."),
    ]);
    let asked = t.say(&[
        format!("\"Who broke the {thing}?\" asked mother. {who} knew that {he} had to tell the truth."),
        format!("Mother heard the noise and came in. {who} felt bad."),
        format!("The {thing} was in pieces, and {who} looked at the floor."),
    ]);
    let context = format!("{} {played}{} {broke} {asked}", t.opening(child), t.filler(child));
    let names: Vec<_> = if culprit.girl { GIRLS.to_vec() } else { BOYS.to_vec() };
    let [a, b, _] = t.others(&names, who, &[innocent]);
    let way = t.below(3);
    story("sorry", context, who, [innocent, a, b], |word| match way {
        0 => format!("\"It was me, and I am sorry,\" said {word}."),
        1 => format!("Then {word} said sorry and helped to clean up."),
        _ => format!("Mother was glad that {word} told the truth."),
    })
}

fn place(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, he_, his) = (child.name, child.he(), child.he_(), child.his());
    let helper = t.pick(&GROWN_UPS);
    let (place, things, others) = pair(t, &PLACES);
    let went = t.say(&[
        format!("One day {he} went to the {place} with {his} {helper}."),
        format!("{his_} {helper} took {name} to the {place}.", his_ = child.his_()),
        format!("{name} wanted to see the {place}, so {his} {helper} took a day off."),
    ]);
    let fun = t.say(&[
        format!("{he_} had never been to a {place} before."),
        format!("They walked around the {place} for hours."),
        format!("It was a long way, but the {place} was worth it."),
    ]);
    let night = t.say(&[
        format!("In the evening they left the {place}."),
        format!("At night {he} told {his} friends about the {place}."),
        format!("At home {name} made a picture of the {place}."),
    ]);
    let context = format!("{}{} {went} {fun} {night}", t.opening(child), t.filler(child));
    let way = t.below(2);
    story("place", context, things, others, |word| match way {
        0 => format!("All {he} could think of was {word}."),
        _ => format!("{name} dreamed of {word} that night."),
    })
}

fn hide(t: &mut Teller) -> Story {
    let child = t.child();
    let friend = t.friend(child);
    let (name, other, he_) = (child.name, friend.name, child.he_());
    let spot = t.pick(&SPOTS);
    let game = t.say(&[
        format!("{name} and {other} played hide and seek."),
        format!("\"Let us play hide and seek,\" said {other}."),
        format!("One day {name} wanted to play a game with {other}."),
    ]);
    let hid = t.say(&[
        format!("{other} hid behind the {spot}."),
        format!("{other} ran to the {spot} and hid behind it."),
        format!("The {spot} was big, so {other} hid behind it."),
    ]);
    let count = t.say(&[
        format!("{name} counted to ten and began to look."),
        format!("{he_} counted slowly. Then {name} looked all around."),
        format!("\"Here I come!\" said {name}, and ran to the {spot}."),
    ]);
    let context = format!("{}{} {game} {hid} {count}", t.opening(child), t.filler(child));
    let others = t.others(&SPOTS, spot, &[]);
    let way = t.below(2);
    story("hide", context, spot, others, |word| match way {
        0 => format!("{name} looked behind the {word} and found {other}."),
        _ => format!("\"You are behind the {word}!\" said {name}."),
    })
}

fn mix(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, he_, his) = (child.name, child.he(), child.he_(), child.his());
    let helper = t.pick(&GROWN_UPS);
    let (colors, color, others) = pair(t, &MIXES);
    let has = t.say(&[
        format!("One day {he} sat down to paint with {his} {helper}."),
        format!("{name} loved colors."),
        format!("{he_} got a box of paints from {his} {helper}."),
    ]);
    let only = t.say(&[
        format!("There was only {colors} paint left."),
        format!("{name} took the {colors} paint."),
        format!("On the table stood {colors} paint."),
    ]);
    let stir = t.say(&[
        format!("{he_} put {colors} in a cup and stirred."),
        format!("\"What do {colors} make?\" {he} asked."),
        format!("{name} mixed {colors} with a stick."),
    ]);
    let context = format!("{}{} {has} {only} {stir}", t.opening(child), t.filler(child));
    let way = t.below(2);
    story("mix", context, color, others, |word| match way {
        0 => format!("Now the paint was {word}."),
        _ => format!("\"Look, it is {word}!\" said {name}."),
    })
}

fn job(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, he_, his) = (child.name, child.he(), child.he_(), child.his());
    let (job, work, others) = pair(t, &JOBS);
    let dream = t.say(&[
        format!("{he_} wanted to be a {job}."),
        format!("\"When I grow up, I will be a {job},\" said {name}."),
        format!("{his_} dream was to become a {job}.", his_ = child.his_()),
    ]);
    let years = t.say(&[
        format!("{he_} learned and worked hard for many years."),
        format!("Every day {he} practiced with {his} father."),
        format!("People laughed, but {name} did not give up."),
    ]);
    let grown = t.say(&[
        format!("Years went by, and {name} grew up to be a {job}."),
        format!("Now {name} is big and a {job}, as in the dream."),
        format!("At last {he} was a {job}."),
    ]);
    let context = format!("{}{} {dream} {years} {grown}", t.opening(child), t.filler(child));
    let way = t.below(2);
    story("job", context, work, others, |word| match way {
        0 => format!("Every day {name} {word}."),
        _ => format!("Now {he} {word} and is proud."),
    })
}

fn treat(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, he_, his) = (child.name, child.he(), child.he_(), child.his());
    let (treat, helper) = (t.pick(&TREATS), t.pick(&GROWN_UPS));
    let liked = t.say(&[
        format!("{he_} liked {treat} more than any other food."),
        format!("What {he} liked best to eat was {treat}."),
        format!("\"I could eat {treat} all day,\" {he} often said."),
    ]);
    let sad = t.say(&[
        format!("One day {name} was sad and did not want to play."),
        format!("One day {name} fell and hurt {his} knee."),
        format!("One day {name} was sick in bed."),
    ]);
    let helped = t.say(&[
        format!("\"Do we have {treat}?\" asked {his} {helper}."),
        format!("\"I know that you like {treat},\" said {his} {helper}."),
        format!("{his_} {helper} came in with some {treat}.", his_ = child.his_()),
    ]);
    let context = format!("{} {liked}{} {sad} {helped}", t.opening(child), t.filler(child));
    let others = t.others(&TREATS, treat, &[]);
    let way = t.below(2);
    story("treat", context, treat, others, |word| match way {
        0 => format!("Soon {name} was eating {word} and felt better."),
        _ => format!("There was {word} for {name}."),
    })
}

fn gift(t: &mut Teller) -> Story {
    let child = t.child();
    let friend = t.friend(child);
    let (name, other, he_, his) = (child.name, friend.name, child.he_(), child.his());
    let toy = t.pick(&TOYS);
    let had = t.say(&[
        format!("{he_} had a nice {toy}."),
        format!("{name} made a {toy} all alone."),
        format!("{he_} found a {toy} in {his} room."),
    ]);
    let sad = t.say(&[
        format!("{his_} friend {other} had no toys.", his_ = child.his_()),
        format!("Next door lived {other}, who was sad."),
        format!("It was the birthday of {other}."),
    ]);
    let gave = t.say(&[
        format!("So {name} gave the {toy} to {other}."),
        format!("\"You can have my {toy},\" said {name} to {other}."),
        format!("{name} put the {toy} in a box for {other}."),
    ]);
    let context = format!("{}{} {had} {sad} {gave}", t.opening(child), t.filler(child));
    let names: Vec<_> = if friend.girl { GIRLS.to_vec() } else { BOYS.to_vec() };
    let [a, b, _] = t.others(&names, other, &[name]);
    let way = t.below(2);
    story("gift", context, other, [name, a, b], |word| match way {
        0 => format!("Now the {toy} belongs to {word}."),
        _ => format!("\"Thank you for the {toy},\" said {word}."),
    })
}

fn need(t: &mut Teller) -> Story {
    let child = t.child();
    let (name, he, he_) = (child.name, child.he(), child.he_());
    let (feeling, act, others) = pair(t, &NEEDS);
    let day = t.say(&[
        format!("One day {he} walked for a long time."),
        format!("{name} came home late one day."),
        format!("All afternoon {name} was outside."),
    ]);
    let felt = t.say(&[
        format!("{he_} was very {feeling}."),
        format!("\"I am so {feeling},\" said {name}."),
        format!("{name} felt {feeling} and did not know what to do."),
    ]);
    let thought = t.say(&[
        format!("What helps when you are {feeling}? {he_} thought for a while."),
        format!("{he_} did not want to be {feeling} any more."),
        format!("\"Nobody has to stay {feeling},\" said mother."),
    ]);
    let context = format!("{}{} {day} {felt} {thought}", t.opening(child), t.filler(child));
    let way = t.below(2);
    story("need", context, act, others, |word| match way {
        0 => format!("So {name} {word}."),
        _ => format!("{he_} {word}, and all was well."),
    })
}

fn capital(word: &str) -> String {
    let mut letters = word.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}
