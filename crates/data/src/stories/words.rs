//! The words of the stories. Words that may stand for each other are of similar length, so that the endings of an item
//! are.

pub(super) const GIRLS: [&str; 16] = [
    "Lily", "Anna", "Mia", "Sue", "Amy", "Zoe", "Ella", "Lucy", "Rose", "Kate", "Jane", "Ivy", "Nora", "Ruby", "Emma",
    "Tess",
];
pub(super) const BOYS: [&str; 16] = [
    "Tom", "Ben", "Sam", "Max", "Leo", "Jack", "Tim", "Dan", "Adam", "Finn", "Luke", "Noah", "Hugo", "Pete", "Eli",
    "Ray",
];
pub(super) const PETS: [&str; 10] = ["Spot", "Milo", "Coco", "Pip", "Rex", "Luna", "Bobo", "Kiki", "Toto", "Nemo"];
pub(super) const ADJECTIVES: [&str; 8] = ["little", "kind", "happy", "clever", "brave", "quiet", "funny", "good"];
pub(super) const HOMES: [&str; 8] = [
    "a small house",
    "a red house",
    "a house by the river",
    "a house on a hill",
    "a little town",
    "a quiet street",
    "a house with a garden",
    "a village by the sea",
];
pub(super) const COLORS: [&str; 8] = ["red", "blue", "green", "yellow", "white", "black", "brown", "pink"];
pub(super) const TOYS: [&str; 12] =
    ["ball", "kite", "doll", "book", "drum", "coin", "ring", "bell", "boat", "train", "hat", "cup"];
pub(super) const SPOTS: [&str; 10] = ["tree", "door", "chair", "wall", "bush", "bed", "rock", "box", "fence", "barn"];
pub(super) const TREATS: [&str; 10] =
    ["cake", "soup", "rice", "plums", "pie", "bread", "corn", "pears", "beans", "figs"];
pub(super) const FRAGILE: [&str; 6] = ["vase", "lamp", "plate", "mug", "bowl", "clock"];
pub(super) const GROWN_UPS: [&str; 8] =
    ["mother", "father", "grandma", "grandpa", "aunt", "uncle", "big sister", "big brother"];
/// Sentences that fit anywhere, about the child (`{he}`, `{name}`).
pub(super) const FILLERS: [&str; 12] = [
    "{He} liked to play outside.",
    "{He} smiled all day long.",
    "{He} got up early that day.",
    "{name} had many friends.",
    "Everyone liked {name}.",
    "{He} ate breakfast and went out.",
    "{name} sang a little song.",
    "{He} ran down the path.",
    "{He} put on {his} shoes.",
    "{name} was full of joy that morning.",
    "{He} waved to the neighbors.",
    "{He} had a good idea.",
];

/// What an animal says.
pub(super) const SOUNDS: [(&str, &str); 10] = [
    ("dog", "woof"),
    ("cat", "meow"),
    ("cow", "moo"),
    ("duck", "quack"),
    ("sheep", "baa"),
    ("pig", "oink"),
    ("bird", "tweet"),
    ("horse", "neigh"),
    ("mouse", "squeak"),
    ("lion", "roar"),
];
/// What an animal eats.
pub(super) const FOODS: [(&str, &str); 8] = [
    ("rabbit", "carrots"),
    ("squirrel", "nuts"),
    ("bear", "honey"),
    ("mouse", "cheese"),
    ("monkey", "bananas"),
    ("cat", "milk"),
    ("horse", "hay"),
    ("bird", "seeds"),
];
/// What children do in a weather.
pub(super) const WEATHER: [(&str, &str); 6] = [
    ("rainy", "jumped in the puddles"),
    ("snowy", "made a big snowman"),
    ("windy", "flew a kite up high"),
    ("hot", "swam in the cool lake"),
    ("foggy", "walked with a bright lamp"),
    ("stormy", "stayed inside and read"),
];
/// What a place is full of.
pub(super) const PLACES: [(&str, &str); 8] = [
    ("farm", "cows and hens"),
    ("beach", "shells and waves"),
    ("forest", "trees and owls"),
    ("zoo", "lions and apes"),
    ("city", "cars and buses"),
    ("pond", "frogs and fish"),
    ("bakery", "bread and buns"),
    ("library", "books and maps"),
];
/// What one needs for what one likes to do.
pub(super) const HOBBIES: [(&str, &str); 8] = [
    ("paint", "brush"),
    ("read", "book"),
    ("cook", "pot"),
    ("write", "pen"),
    ("dig", "spade"),
    ("make music", "drum"),
    ("fish", "rod"),
    ("sew", "needle"),
];
/// Two colors of paint and what they make.
pub(super) const MIXES: [(&str, &str); 6] = [
    ("red and yellow", "orange"),
    ("blue and yellow", "green"),
    ("red and blue", "purple"),
    ("red and white", "pink"),
    ("black and white", "gray"),
    ("red and green", "brown"),
];
/// A job and what it is to have it.
pub(super) const JOBS: [(&str, &str); 8] = [
    ("baker", "bakes warm bread"),
    ("doctor", "helps sick people"),
    ("farmer", "grows tall corn"),
    ("pilot", "flies big planes"),
    ("sailor", "sails fast ships"),
    ("singer", "sings sweet songs"),
    ("builder", "builds new houses"),
    ("painter", "paints big pictures"),
];
/// How one feels and what helps.
pub(super) const NEEDS: [(&str, &str); 6] = [
    ("cold", "put on a warm coat"),
    ("thirsty", "drank a glass of water"),
    ("tired", "went to bed and slept"),
    ("hungry", "ate a bowl of soup"),
    ("dirty", "took a bath with soap"),
    ("lonely", "asked a friend to play"),
];
