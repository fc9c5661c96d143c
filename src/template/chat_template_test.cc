// SPDX-License-Identifier: Apache-2.0
#include "template/chat_template.h"

#include <gtest/gtest.h>

namespace loralei {
namespace {

ChatPrompt prompt_of(std::vector<ChatMessage> messages) {
  ChatPrompt prompt;
  prompt.messages = std::move(messages);
  prompt.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}};
  return prompt;
}

ChatMessage says(const char* role, const char* text) {
  ChatMessage message;
  message.role = role;
  message.content = text;
  return message;
}

std::string render(const char* source, const ChatPrompt& prompt) {
  const auto parsed = ChatTemplate::parse(source);
  if (!parsed.ok()) return parsed.error().message;
  const auto text = parsed.value()->render(prompt);
  return text.ok() ? text.value() : text.error().message;
}

TEST(ChatTemplate, BuiltinsRender) {
  const ChatPrompt prompt =
      prompt_of({says("system", "Be brief."), says("user", "Hi"), says("assistant", "Hello!"), says("user", "Bye")});
  const std::pair<const char*, const char*> expected[] = {
      {"chatml",
       "<|im_start|>system\nBe "
       "brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
       "<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n"},
      {"llama2", "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Bye [/INST]"},
      {"llama3",
       "<s><|start_header_id|>system<|end_header_id|>\n\nBe "
       "brief.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nHi"
       "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|><|start_header_id|>user<|end_header_"
       "id|>\n\nBye"
       "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n"},
      {"mistral", "<s>[INST] Be brief.\n\nHi [/INST] Hello!</s>[INST] Bye [/INST]"},
      {"alpaca",
       "<s>Be brief.\n\n### Instruction:\nHi\n\n### Response:\nHello!</s>\n\n### Instruction:\nBye\n\n### Response:\n"},
      {"vicuna", "<s>Be brief.\n\nUSER: Hi\nASSISTANT: Hello!</s>\nUSER: Bye\nASSISTANT:"},
      {"zephyr",
       "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello!</s>\n<|user|>\nBye</s>\n<|assistant|>\n"}};
  EXPECT_EQ(ChatTemplate::builtin_names().size(), std::size(expected));
  for (const auto& [name, text] : expected) {
    const auto builtin = ChatTemplate::builtin(name);
    ASSERT_TRUE(builtin.ok()) << name;
    const auto rendered = builtin.value()->render(prompt);
    ASSERT_TRUE(rendered.ok()) << rendered.error().message;
    EXPECT_EQ(rendered.value(), text);
  }
  EXPECT_EQ(ChatTemplate::builtin("nope").error().code, ErrorCode::kNotFound);
}

TEST(ChatTemplate, ShowsWhatTransformersShows) {
  ChatPrompt prompt = prompt_of({says("user", "x")});
  EXPECT_EQ(render("{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ pad_token is defined }}",
                   prompt),
            "True True True False");
  prompt.tools = R"([{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}])";
  prompt.kwargs = R"({"enable_thinking": false, "bos_token": "[B]"})";
  EXPECT_EQ(render("{{ bos_token }}{{ tools[0] | tojson }}{{ enable_thinking }}", prompt),
            R"([B]{"type": "function", "function": {"name": "f", "parameters": {"b": 1, "a": 2}}}False)");
  prompt.kwargs = R"({"messages": []})";
  EXPECT_NE(render("", prompt).find("may not set 'messages'"), std::string::npos);
  prompt.kwargs = "[1";
  EXPECT_NE(render("", prompt).find("chat_template_kwargs is not valid JSON"), std::string::npos);
}

TEST(ChatTemplate, MessagesHaveTheFieldsThatTheyHave) {
  ChatMessage message = says("assistant", "x");
  message.name = "bob";
  message.more = R"({"whim": "hm", "marks": [1, 2.5, null, {"a": true}]})";
  const char* shown = "{{ messages[0] | tojson }}";
  EXPECT_EQ(
      render(shown, prompt_of({message})),
      R"({"role": "assistant", "content": "x", "name": "bob", "whim": "hm", "marks": [1, 2.5, null, {"a": true}]})");
  EXPECT_EQ(render("{{ messages[0].marks[3].a }}{{ messages[0].mood is defined }}", prompt_of({message})), "TrueFalse");
  message = ChatMessage();
  message.role = "assistant";
  const char* asked =
      "{{ messages[0].content is defined }} {{ messages[0].content is none }} {{ 'content' in messages[0] }}";
  EXPECT_EQ(render(asked, prompt_of({message})), "False False False");
  message.null_content = true;
  EXPECT_EQ(render(asked, prompt_of({message})), "True True True");
  message.more = "[1]";
  EXPECT_NE(render(shown, prompt_of({message})).find("must be a JSON object"), std::string::npos);
}

TEST(ChatTemplate, ReasoningIsShownUnderTheNamesThatTemplatesRead) {
  const auto shown = [](const char* more) {
    ChatMessage message = says("assistant", "");
    message.more = more;
    return render("{{ messages[0].reasoning_content }} {{ messages[0].thinking }} {{ messages[0].reasoning }}",
                  prompt_of({message}));
  };
  EXPECT_EQ(shown(R"({"reasoning": "a"})"), "a a a");
  EXPECT_EQ(shown(R"({"thinking": "a"})"), "a a ");
  EXPECT_EQ(shown(R"({"reasoning_content": "a"})"), "a a ");
  EXPECT_EQ(shown(R"({"reasoning_content": null, "thinking": "b", "reasoning": "c"})"), "b b c");
  EXPECT_EQ(shown(R"({"reasoning_content": "a", "thinking": null})"), "a None ");
  EXPECT_EQ(shown(R"({"reasoning": null})"), "  None");
  const auto reader = ChatTemplate::parse("{{ messages[0].thinking }}").value();
  for (const char* name : {"reasoning_content", "thinking", "reasoning"}) EXPECT_TRUE(reader->reads_field(name));
  EXPECT_FALSE(reader->reads_field("thought"));
  EXPECT_FALSE(ChatTemplate::parse("{{ messages[0].content }}").value()->reads_field("reasoning"));
}

// Roles that a template does not know are dropped by some and refused by others.
TEST(ChatTemplate, DevelopersAreSystemWhereTheTemplateDoesNotKnowThem) {
  const ChatPrompt prompt = prompt_of({says("system", "S"), says("developer", "D"), says("user", "U")});
  const std::pair<const char*, const char*> expected[] = {
      {"{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}", "<system>S<system>D<user>U"},
      {"{% for m in messages %}{% if m.role == 'system' or m['role'] == 'user' %}{{ m.content }}{% endif %}{% endfor "
       "%}",
       "SDU"},
      {"{% for m in messages %}{% if m.role == 'system' %}developer: {{ m.content }} {% endif %}{% endfor %}",
       "developer: S developer: D "},
      {"{% for m in messages %}{% if m.role == \"developer\" %}[{{ m.content }}]{% else %}{{ m.role }} {% endif %}"
       "{% endfor %}",
       "system [D]user "},
      {"{% for m in messages %}{{ m.role if m.role in ['system', 'developer'] else 'x' }} {% endfor %}",
       "system developer x "}};
  for (const auto& [source, text] : expected) EXPECT_EQ(render(source, prompt), text) << source;
}

TEST(ChatTemplate, BuiltinsShowEveryMessage) {
  ChatMessage silent;
  silent.role = "assistant";
  ChatMessage null = silent;
  null.null_content = true;
  ChatPrompt prompt = prompt_of({says("system", "s1"), says("developer", "d1"), says("user", "u1"), silent,
                                 says("user", "u2"), null, says("developer", "d2")});
  for (const std::string_view name : ChatTemplate::builtin_names()) {
    const auto text = ChatTemplate::builtin(name).value()->render(prompt);
    ASSERT_TRUE(text.ok()) << name << text.error().message;
    size_t at = 0;
    for (const char* part : {"s1", "d1", "u1", "u2", "d2"}) {
      const size_t found = text.value().find(part, at);
      EXPECT_NE(found, std::string::npos) << name << " lacks " << part << " at its place: " << text.value();
      if (found != std::string::npos) at = found;
    }
    EXPECT_EQ(text.value().find("None"), std::string::npos) << name << text.value();
    EXPECT_EQ(text.value().find("developer"), std::string::npos) << name << text.value();
  }
}

TEST(ChatTemplate, ToolCallsCarryTheirArgumentsAsDicts) {
  ChatMessage call = says("assistant", "");
  call.content.reset();
  call.null_content = true;
  call.tool_calls = {{"call_1", "f", R"({"b": 1, "a": [true, null]})"}, {"", "g", "not json"}};
  ChatMessage answer = says("tool", "42");
  answer.tool_call_id = "call_1";
  const ChatPrompt prompt = prompt_of({says("user", "x"), call, answer});
  EXPECT_EQ(
      render("{{ messages[1] | tojson }}", prompt),
      R"({"role": "assistant", "content": null, "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", )"
      R"("arguments": {"b": 1, "a": [true, null]}}}, {"type": "function", "function": {"name": "g", "arguments": "not json"}}]})");
  EXPECT_EQ(render("{{ messages[2].tool_call_id }}{{ messages[0].tool_calls is defined }}", prompt), "call_1False");
}

// What templates of models with channels are written with: a macro that calls itself for
// the types of a tool, a namespace that remembers a call, and an effort to reason.
TEST(ChatTemplate, ChannelsAndTypesOfTools) {
  constexpr const char* kSource = R"(
{%- macro shape(spec) -%}
  {%- if spec.type == "array" -%}
    {{- shape(spec['items']) + "[]" -}}
  {%- elif spec.type is defined and spec.type is iterable and spec.type is not string -%}
    {{- spec.type | join(" | ") -}}
  {%- elif spec.enum -%}
    {{- '"' + spec.enum | join('" | "') + '"' -}}
  {%- elif spec.type == "object" -%}
    {{- "{" -}}
    {%- for name, one in spec.properties.items() -%}
      {{- name + ("" if name in (spec.required or []) else "?") + ": " + shape(one) -}}
      {%- if not loop.last -%}{{- ", " -}}{%- endif -%}
    {%- endfor -%}
    {{- "}" -}}
  {%- else -%}
    {{- spec.type -}}
  {%- endif -%}
{%- endmacro -%}
{%- set ns = namespace(call=none) -%}
{{- "<|start|>system<|message|>Reasoning: " + (reasoning_effort if reasoning_effort is defined else "medium") -}}
{{- "<|end|>" -}}
{%- set own = messages[0].role in ["developer", "system"] -%}
{%- if own or tools -%}
  {{- "<|start|>developer<|message|>" + (messages[0].content if own else "") -}}
  {%- for tool in tools or [] -%}
    {{- "type " + tool.function.name + " = (_: " + shape(tool.function.parameters) + ") => any;" -}}
  {%- endfor -%}
  {{- "<|end|>" -}}
{%- endif -%}
{%- set rest = messages[1:] if own else messages -%}
{%- for message in rest -%}
  {%- if message.role == "assistant" and message.tool_calls -%}
    {%- set call = message.tool_calls[0].function -%}
    {%- set ns.call = call.name -%}
    {{- "<|start|>assistant<|channel|>commentary to=functions." + call.name + " <|constrain|>json<|message|>" -}}
    {{- call.arguments | tojson + "<|call|>" -}}
  {%- elif message.role == "assistant" -%}
    {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" -}}
  {%- elif message.role == "tool" -%}
    {%- if ns.call is none -%}{{- raise_exception("a result without a call") -}}{%- endif -%}
    {{- "<|start|>functions." + ns.call + " to=assistant<|channel|>commentary<|message|>" -}}
    {{- message.content | tojson + "<|end|>" -}}
  {%- else -%}
    {{- "<|start|>" + message.role + "<|message|>" + message.content + "<|end|>" -}}
  {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- "<|start|>assistant" -}}{%- endif -%}
)";
  ChatMessage calls = says("assistant", "");
  calls.tool_calls = {{"1", "find", R"({"n": 2})"}};
  ChatPrompt prompt = prompt_of({says("developer", "Be brief."), says("user", "Hi"), calls, says("tool", "ok"),
                                 says("assistant", "Found."), says("user", "Thanks")});
  prompt.tools =
      R"([{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "required": ["n"],
          "properties": {"n": {"type": "integer"}, "of": {"type": "array", "items": {"enum": ["a", "b"]}},
                         "at": {"type": ["string", "null"]}}}}}])";
  prompt.kwargs = R"({"reasoning_effort": "low"})";
  EXPECT_EQ(render(kSource, prompt),
            "<|start|>system<|message|>Reasoning: low<|end|>"
            "<|start|>developer<|message|>Be brief.type find = (_: {n: integer, of?: \"a\" | \"b\"[], at?: string | "
            "null}) => any;<|end|><|start|>user<|message|>Hi<|end|>"
            "<|start|>assistant<|channel|>commentary to=functions.find <|constrain|>json<|message|>{\"n\": 2}<|call|>"
            "<|start|>functions.find to=assistant<|channel|>commentary<|message|>\"ok\"<|end|>"
            "<|start|>assistant<|channel|>final<|message|>Found.<|end|><|start|>user<|message|>Thanks<|end|>"
            "<|start|>assistant");
  EXPECT_NE(render(kSource, prompt_of({says("tool", "x")})).find("a result without a call"), std::string::npos);
}

TEST(ChatTemplate, TemplatesThatJoinArgumentsToTextGetThemAsStrings) {
  ChatMessage call = says("assistant", "");
  call.tool_calls = {{"call_1", "f", R"({"b":1})"}};
  const ChatPrompt prompt = prompt_of({says("user", "x"), call});
  EXPECT_EQ(render("{{ '```json' + messages[1].tool_calls[0].function.arguments + '```' }}", prompt),
            R"(```json{"b":1}```)");
  EXPECT_NE(
      render("{{ raise_exception(messages[1].tool_calls[0].function.arguments is mapping) }}", prompt).find("True"),
      std::string::npos)
      << "the first failure is the one that is told";
}

TEST(ChatTemplate, ContinuesTheFinalMessage) {
  const char* source = "{% for m in messages %}<{{ m.role }}>{{ m.content }}<end>\n{% endfor %}";
  const char* trimming = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}<end>\n{% endfor %}";
  ChatPrompt prompt = prompt_of({says("user", "So"), says("assistant", " So far ")});
  prompt.continue_final_message = true;
  EXPECT_NE(render(source, prompt).find("exclude each other"), std::string::npos);
  prompt.add_generation_prompt = false;
  EXPECT_EQ(render(source, prompt), "<user>So<end>\n<assistant> So far ");
  EXPECT_EQ(render(trimming, prompt), "<user>So<end>\n<assistant>So far");
  EXPECT_NE(render("nothing", prompt).find("does not show"), std::string::npos);
}

ChatPrompt continued(std::vector<ChatMessage> messages) {
  ChatPrompt prompt = prompt_of(std::move(messages));
  prompt.continue_final_message = true;
  prompt.add_generation_prompt = false;
  return prompt;
}

TEST(ChatTemplate, AnEmptyFinalMessageLeavesItsHead) {
  const std::pair<const char*, const char*> heads[] = {
      {"chatml", "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
      {"llama2", "<s>[INST] Hi [/INST] "},
      {"llama3",
       "<s><|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|><|start_header_id|>assistant"
       "<|end_header_id|>\n\n"},
      {"mistral", "<s>[INST] Hi [/INST] "},
      {"alpaca", "<s>### Instruction:\nHi\n\n### Response:\n"},
      {"vicuna", "<s>USER: Hi\nASSISTANT: "},
      {"zephyr", "<|user|>\nHi</s>\n<|assistant|>\n"}};
  ASSERT_EQ(std::size(heads), ChatTemplate::builtin_names().size());
  for (const auto& [name, head] : heads) {
    const auto text =
        ChatTemplate::builtin(name).value()->render(continued({says("user", "Hi"), says("assistant", "")}));
    ASSERT_TRUE(text.ok()) << text.error().message;
    EXPECT_EQ(text.value(), head) << name;
  }
  const char* trimming = "{% for m in messages %}<{{ m.role }}>\n{{ m.content | trim }}<end>{% endfor %}";
  EXPECT_EQ(render(trimming, continued({says("assistant", " \n ")})), "<assistant>\n");
  ChatMessage absent;
  absent.role = "assistant";
  EXPECT_NE(render(trimming, continued({absent})).find("no content to continue"), std::string::npos);
  absent.null_content = true;
  EXPECT_NE(render(trimming, continued({absent})).find("no content to continue"), std::string::npos);
}

// What stands behind the text in the template may look like it.
TEST(ChatTemplate, ContinuesBehindTheFinalTextAndNotWhereItIsRepeated) {
  const char* source = "{% for m in messages %}{{ m.content }}<end>{% endfor %}";
  EXPECT_EQ(render(source, continued({says("user", "abab"), says("assistant", "ab")})), "abab<end>ab");
  EXPECT_EQ(render(source, continued({says("user", "x"), says("assistant", "end")})), "x<end>end");
  EXPECT_EQ(render(source, continued({says("user", "x"), says("assistant", "<")})), "x<end><");
  EXPECT_EQ(render(source, continued({says("assistant", "CONTINUE_FINAL_MESSAGE_TAG ")})),
            "CONTINUE_FINAL_MESSAGE_TAG ");
  for (const char* hiding : {"{{ messages[0].content }}aba", "{{ messages[-1].content[2:] }}",
                             "{{ messages[-1].content | replace('ab', 'c') }}"})
    EXPECT_NE(render(hiding, continued({says("user", "abab"), says("assistant", "ab")})).find("does not show"),
              std::string::npos)
        << hiding;
}

TEST(ChatTemplate, TellsABeginningOfSequenceTokenInTheText) {
  EXPECT_TRUE(begins_with_bos("<s>[INST]", "<s>"));
  EXPECT_FALSE(begins_with_bos("[INST]", "<s>"));
  EXPECT_FALSE(begins_with_bos("[INST]", ""));
  EXPECT_TRUE(ChatTemplate::parse("{% if tools %}x{% endif %}").value()->shows_tools());
  EXPECT_FALSE(ChatTemplate::parse("tools").value()->shows_tools());
  EXPECT_TRUE(ChatTemplate::parse("{% for d in documents %}x{% endfor %}").value()->shows_documents());
  EXPECT_FALSE(ChatTemplate::parse("{{ messages }}").value()->shows_documents());
  EXPECT_FALSE(ChatTemplate::parse("x").value()->render(ChatPrompt()).ok());
  EXPECT_NE(no_chat_template("m").message.find("--chat-template"), std::string::npos);
}

}  // namespace
}  // namespace loralei
