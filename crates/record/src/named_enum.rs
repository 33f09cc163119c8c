//! Enums whose variants have names, as they stand in files, JSON, tables and on the command line.

/// Defines an enum with the name of each variant: `ALL` variants, the `name` of one, and serialization as that name.
#[macro_export]
macro_rules! named_enum {
    ($(#[$meta:meta])* pub enum $Enum:ident { $($(#[$doc:meta])* $Variant:ident = $name:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
        pub enum $Enum {
            $($(#[$doc])* #[serde(rename = $name)] $Variant,)+
        }

        impl $Enum {
            pub const ALL: [Self; [$($name),+].len()] = [$(Self::$Variant),+];

            /// The name of the variant in files and tables.
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$Variant => $name,)+
                }
            }
        }
    };
}
