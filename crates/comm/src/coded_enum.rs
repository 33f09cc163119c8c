//! Enums whose values have a code, for memory that ranks share, and a name, for messages.

/// Defines an enum whose values have a code and a name.
macro_rules! coded_enum {
    ($(#[$meta:meta])* $type:ident: $($(#[$variant_meta:meta])* $variant:ident = $code:literal, $name:literal;)+) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
        #[repr(u8)]
        pub enum $type {
            $($(#[$variant_meta])* $variant = $code),+
        }

        impl $type {
            pub(crate) fn with_code(code: u64) -> Option<Self> {
                [$(Self::$variant),+].into_iter().find(|value| *value as u64 == code)
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $name),+
                })
            }
        }
    };
}

pub(crate) use coded_enum;
