# bash completion for infctl; made by `infctl completion bash`
_infctl() {
  local line IFS=$'\n'
  COMPREPLY=()
  for line in $(infctl __complete bash -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null); do
    if [[ $line == :files ]]; then
      compopt -o filenames 2>/dev/null
      COMPREPLY+=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
    else
      COMPREPLY+=("$line")
    fi
  done
  if [[ ${COMPREPLY[0]-} == */ ]]; then
    compopt -o nospace 2>/dev/null
  fi
}
complete -F _infctl infctl
