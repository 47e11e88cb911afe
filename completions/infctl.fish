# fish completion for infctl; made by `infctl completion fish`
function __infctl_complete
    set -l words (commandline -opc)
    set -l current (commandline -ct)
    for line in (infctl __complete fish -- $words[2..-1] "$current" 2>/dev/null)
        if test "$line" = ":files"
            __fish_complete_path "$current"
        else
            printf '%s\n' $line
        end
    end
end
complete -c infctl -f -a '(__infctl_complete)'
