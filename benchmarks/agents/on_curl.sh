# An agent that is a shell and curl: it asks twice, and is worth the share of small letters in eight of what was said.
prompt=$(sed 's/.*"prompt": "\([^"]*\)".*/\1/' sample.json)
ask() {
    curl --silent --fail-with-body "$OPENAI_BASE_URL/chat/completions" -H "Authorization: Bearer $OPENAI_API_KEY" \
        -d "{\"model\": \"$OPENAI_MODEL\", \"max_tokens\": 8, \"messages\": [{\"role\": \"user\", \"content\": \"$1\"}]}" || exit 1
}
said=$(ask "$prompt")$(ask "$prompt once more")
letters=$(printf %s "$said" | grep -o '"content": *"[^"]*"' | sed 's/"content": *//' | tr -cd 'a-z' | wc -c)
awk "BEGIN {print ($letters < 16 ? $letters : 16) / 16}"
