//! Names of signals.

/// The name of `signal`, such as `SIGKILL`.
pub fn signal_name(signal: i32) -> String {
    macro_rules! name_among {
        ($($name:ident)+) => {
            match signal {
                $(libc::$name => stringify!($name).to_owned(),)+
                other => format!("signal {other}"),
            }
        };
    }
    name_among!(SIGABRT SIGBUS SIGFPE SIGHUP SIGILL SIGINT SIGKILL SIGPIPE SIGQUIT SIGSEGV SIGSYS SIGTERM SIGTRAP SIGXCPU)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names() {
        assert_eq!((signal_name(9).as_str(), signal_name(11).as_str()), ("SIGKILL", "SIGSEGV"));
        assert_eq!(signal_name(1000), "signal 1000");
    }
}
