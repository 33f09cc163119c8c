#!/bin/sh
# Counts the lines of code of each crate, without tests, blank lines and comments: what one has to read to know the program.
set -eu
cd "$(dirname "$0")/.."
{
    git ls-files 'crates/*.rs' 'src/*.rs'
    git ls-files --others --exclude-standard 'crates/*.rs' 'src/*.rs'
} | grep -v -e '/tests/' -e '/tests\.rs$' -e '/testing\.rs$' -e '/benches/' | sort -u | while read -r file; do
    if [ -f "$file" ]; then
        # Unit tests are at the end of a file.
        awk -v file="$file" '
            /^#\[cfg\(test\)\]$/ || /^#\[cfg\(all\(test/ { held = 1; next }
            held && /^mod tests \{/ { exit }
            held && /^mod [a-z_]*;/ { held = 0; next }
            { held = 0 }
            !/^[[:space:]]*(\/\/.*)?$/ { lines += 1 }
            END {
                split(file, parts, "/")
                print (parts[1] == "crates" ? parts[2] : "runner"), lines + 0
            }' "$file"
    fi
done | awk '
    { lines[$1] += $2; all += $2 }
    END {
        for (crate in lines) printf "%7d  %s\n", lines[crate], crate | "sort -rn"
        close("sort -rn")
        printf "%7d  lines of code\n", all
    }'
