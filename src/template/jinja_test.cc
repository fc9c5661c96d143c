// SPDX-License-Identifier: Apache-2.0
#include "template/jinja.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "template/jinja_json.h"

namespace loralei {
namespace {

using Json = nlohmann::ordered_json;

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

Json read_json(const std::filesystem::path& path) { return Json::parse(read_file(path), nullptr, false); }

Result<std::string> render(const std::string& source, const Json& context, int64_t unix_time_s = 0) {
  TRY_ASSIGN(auto parsed, JinjaTemplate::parse(source));
  Work work;
  TRY_ASSIGN(const auto value, jinja_from_json_text(context.dump(), work));
  JinjaRenderOptions options;
  options.unix_time_s = unix_time_s;
  return parsed->render(*value, options);
}

std::string text_or_error(const Result<std::string>& result) {
  return result.ok() ? result.value() : "ERROR " + result.error().message;
}

// Both sides fail, or both give the same text. raise_exception's text must
// be in our message.
void expect_case(const std::string& name, const std::string& source, const Json& context, int64_t unix_time_s,
                 const Json& entry, const char* text_key) {
  const Result<std::string> result = render(source, context, unix_time_s);
  if (entry.contains(text_key)) {
    EXPECT_EQ(text_or_error(result), entry[text_key].get<std::string>()) << name << "\n" << source;
    return;
  }
  EXPECT_FALSE(result.ok()) << name << "\n"
                            << source << "\nwants " << entry["error"] << ", rendered " << text_or_error(result);
  if (result.ok()) return;
  EXPECT_EQ(result.error().code, ErrorCode::kInvalidArgument);
  EXPECT_NE(result.error().message.find("line "), std::string::npos) << result.error().message;
  std::string raised = entry["error"].get<std::string>();
  if (raised.rfind("TemplateError: ", 0) == 0)
    raised = raised.substr(15);
  else if (raised == "TemplateError")
    raised = entry["message"].get<std::string>();
  else
    return;
  EXPECT_NE(result.error().message.find(raised), std::string::npos) << result.error().message;
}

TEST(Jinja, EqualsPythonOnExpressions) {
  const Json file = read_json(LORALEI_SOURCE_DIR "/src/template/testdata/jinja_expressions.json");
  ASSERT_TRUE(file.is_object());
  ASSERT_GT(file["cases"].size(), 500u);
  for (const Json& entry : file["cases"]) {
    expect_case("", entry["template"].get<std::string>(), file["context"], file["unix_time_s"].get<int64_t>(), entry,
                "text");
  }
}

TEST(Jinja, EqualsPythonOnTemplatesWrittenForEveryConstruct) {
  const std::filesystem::path root = LORALEI_SOURCE_DIR "/tests/vectors";
  ASSERT_TRUE(std::filesystem::exists(root / "templates/cases.json"))
      << "the committed tests/vectors/templates is missing";
  const Json file = read_json(root / "templates/cases.json");
  std::tm parts{};
  ASSERT_NE(strptime(file["clock"].get<std::string>().c_str(), "%Y-%m-%dT%H:%M:%S", &parts), nullptr);
  const int64_t clock = timegm(&parts);
  for (const Json& entry : file["cases"]) {
    const std::string source = entry.contains("template")
                                   ? entry["template"].get<std::string>()
                                   : read_file(root / "templates" / entry["source"].get<std::string>());
    Json context = entry["context"];
    if (context == "data") context = file["data"];
    if (context == "nasty") {
      context = Json::object();
      const Json nasty = read_json(root / "nasty_strings.json");
      for (const Json& text : nasty) context["texts"].push_back(text["text"]);
    }
    expect_case(entry["name"].get<std::string>(), source, context, clock, entry, "expected");
  }
}

std::filesystem::path shared_data() {
  const char* root = std::getenv("LORALEI_SHARED_DATA");
  return root != nullptr ? std::filesystem::path(root) : std::filesystem::path(LORALEI_SOURCE_DIR "/../shared/data");
}

TEST(Jinja, EqualsPythonOnPublishedTemplates) {
  const std::filesystem::path folder = shared_data() / "chat_templates";
  if (!std::filesystem::exists(folder / "vectors")) GTEST_SKIP() << "no shared data at " << folder;
  const Json file = read_json(folder / "vectors/python_jinja2_renderings.json");
  int64_t count = 0;
  for (const auto& [name, cases] : file["rendered"].items()) {
    const std::string source = read_file(folder / name);
    for (const auto& [label, entry] : cases.items()) {
      Json context = file["cases"][label];
      context["bos_token"] = file["bos_token"];
      context["eos_token"] = file["eos_token"];
      expect_case(name + " " + label, source, context, 1752148800, entry, "text");
      ++count;
    }
  }
  EXPECT_GT(count, 100);
}

TEST(Jinja, EqualsPythonOnTemplatesOfTheJavaScriptPort) {
  const std::filesystem::path path = shared_data() / "chat_templates/vectors/hfjs_e2e_a.json";
  if (!std::filesystem::exists(path)) GTEST_SKIP() << "no shared data at " << path;
  const Json file = read_json(path);
  for (const auto& [name, entry] : file.items()) {
    if (!entry["python_jinja2_agrees"].get<bool>()) continue;
    expect_case(name, entry["chat_template"].get<std::string>(), entry["data"], 1752148800, entry, "target");
  }
}

// --- limits

TEST(Jinja, HostileTemplatesEnd) {
  const char* sources[] = {
      "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% "
      "endfor %}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{% set ns = namespace(x='aaaaaaaaaaaaaaaa') %}{% for i in range(90000) %}{% set ns.x = ns.x + ns.x %}{% endfor "
      "%}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(90000) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1]) %}{% for i in range(100) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
      "{% set ns = namespace(x=[1], y=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% set ns.y = [ns.y, "
      "ns.y] %}{% endfor %}{{ ns.x == ns.y }}",
      "{% set ns = namespace() %}{% set ns.x = ns %}{{ ns }}",
      "{{ 'a' * 99999999999 }}",
      "{{ [1] * 99999999999 }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ 2 ** 100000 }}",
      "{{ '%99999999d' % 1 }}",
      "{{ 'x'.center(999999999999) }}",
      "{% for x in [[1]] recursive %}{{ loop([x]) }}{% endfor %}",
      "{% set ns = namespace(t='ab') %}{% for i in range(50) %}{% set ns.t = ns.t.replace('', ns.t) %}{% endfor %}",
      "{% set ns = namespace(t='ab') %}{% for i in range(50) %}{% set ns.t = ns.t | join(ns.t) %}{% endfor %}",
      "{% set x %}{% for i in range(99999) %}{% for j in range(99999) %}aaaaaaaaaaaaaaaaaaaaaaaa{% endfor %}{% endfor "
      "%}{% endset %}",
      "{{ [[[]]] | tojson(indent=' ' * 100000000) }}{{ range(99999) | list | tojson(indent='x' * 9999999) }}",
  };
  for (const char* source : sources) {
    const Result<std::string> result = render(source, Json::object());
    EXPECT_FALSE(result.ok()) << source;
  }
}

TEST(Jinja, DeepTemplatesAreRefused) {
  const auto repeat = [](const std::string& text, int count) {
    std::string out;
    for (int i = 0; i < count; ++i) out += text;
    return out;
  };
  const std::string sources[] = {"{{ " + repeat("(", 5000) + "1" + repeat(")", 5000) + " }}",
                                 "{{ " + repeat("[", 5000) + " }}",
                                 "{{ 1" + repeat(" + 1", 5000) + " }}",
                                 "{{ " + repeat("not ", 5000) + "1 }}",
                                 "{{ " + repeat("-", 5000) + "1 }}",
                                 "{{ x" + repeat(".a", 5000) + " }}",
                                 "{{ x" + repeat("|d", 5000) + " }}",
                                 "{{ 1" + repeat(" if 1 else 1", 5000) + " }}",
                                 repeat("{% if 1 %}", 5000),
                                 repeat("{% for x in y %}", 5000),
                                 "{% set " + repeat("(", 5000) + "x = 1 %}",
                                 "{{ x" + repeat("(", 5000) + " }}"};
  for (const std::string& source : sources) EXPECT_FALSE(JinjaTemplate::parse(source).ok()) << source.substr(0, 40);
  EXPECT_EQ(JinjaTemplate::parse(std::string(kMaxTemplateBytes + 1, 'x')).error().code, ErrorCode::kTooLarge);
  EXPECT_FALSE(JinjaTemplate::parse("\xff").ok());
}

TEST(Jinja, RangeOfWhatIsNotDefinedIsAnError) {
  for (const char* arguments : {"x", "x, 3", "0, x", "0, x, -2", "0, 3, x", "0, stop=x", "1.5"}) {
    const auto text = render("{{ range(" + std::string(arguments) + ") | list }}", Json::object());
    ASSERT_FALSE(text.ok()) << arguments;
    const bool undefined = std::string(arguments).find('x') != std::string::npos;
    EXPECT_EQ(text.error().message.find("'x'") != std::string::npos, undefined) << text.error().message;
  }
}

TEST(Jinja, ErrorsNameTheLine) {
  EXPECT_NE(render("a\n\n{{ x.y }}", Json::object()).error().message.find("line 3"), std::string::npos);
  EXPECT_NE(render("a\n{% if 1 %}\n{{ raise_exception('no way') }}{% endif %}", Json::object())
                .error()
                .message.find("line 3: no way"),
            std::string::npos);
  EXPECT_NE(JinjaTemplate::parse("a\n{{ 1 +\n }}").error().message.find("line 3"), std::string::npos);
}

}  // namespace
}  // namespace loralei
