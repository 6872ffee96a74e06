"""Settings from files are those of Python, and their references are resolved or named."""

from __future__ import annotations

import pickle

import pytest

from txnproducer.config import ProducerConfig
from txnproducer.errors import InvalidConfigurationError, UnknownConfigError

SECRET = "hunter2"
JAVA = "org.apache.kafka.common.serialization"
PROVIDER = "org.apache.kafka.common.config.provider"


@pytest.fixture
def write(tmp_path):
    def write_file(text, name="client.properties"):
        file = tmp_path / name
        file.write_text(text, encoding="utf-8")
        return file

    return write_file


def read(file, **overrides):
    return ProducerConfig.from_file(file, **overrides)


def refused(file, **overrides):
    with pytest.raises(InvalidConfigurationError) as caught:
        read(file, **overrides)
    assert SECRET not in str(caught.value)
    assert str(caught.value).startswith(str(file))
    return str(caught.value)


# --- property files -----------------------------------------------------------------------------


def test_a_property_file_is_read_as_java_reads_it(write):
    file = write(
        "# a comment\n! another\\\n"
        "bootstrap.servers = a:1,\\\n    b:2\n"
        "linger_ms: 7\n"
        "enable.idempotence true\n"
        "client.id=na\\u00efve \\\\ ü\n"
        "\n"
        "linger_ms=8\n"
    )
    config = read(file)
    assert config.bootstrap_addresses == (("a", 1), ("b", 2))
    assert config.linger_ms == 8
    assert config.client_id == "naïve \\ ü"
    assert config.enable_idempotence


def test_a_login_of_java_may_take_several_lines(write):
    config = read(
        write(
            "bootstrap.servers=a\n"
            "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
            "sasl.jaas.config=org.apache.PlainLoginModule required \\\n"
            '   username="me" \\\n   password="p";\n'
        )
    )
    assert config.security["sasl_plain_password"] == "p"


def test_a_file_of_an_editor_on_windows_is_read(tmp_path):
    file = tmp_path / "client.properties"
    file.write_bytes(b"\xef\xbb\xbfbootstrap.servers=a\r\nlinger.ms=5\r\n")
    assert read(str(file)).linger_ms == 5


def test_arguments_override_the_file_even_where_its_value_is_of_no_use_here(write):
    file = write(
        "bootstrap.servers=a\nlinger.ms=x\nvalue.serializer=io.confluent.KafkaAvroSerializer\n"
    )
    config = read(file, linger_ms=1, **{"value.serializer": str.encode})
    assert (config.linger_ms, config.value_serializer) == (1, str.encode)
    assert "a Java class name cannot be used" in refused(file, linger_ms=1)


def test_javas_serializers_of_bytes_and_texts_have_a_meaning_here(write):
    config = read(
        write(
            f"bootstrap.servers=a\nkey.serializer={JAVA}.StringSerializer\n"
            f"value.serializer={JAVA}.ByteArraySerializer\n"
        )
    )
    assert (config.key_serializer, config.value_serializer) == (str.encode, None)


def test_an_unknown_name_is_refused_with_the_closest_one_and_the_file(write):
    file = write("bootstrap.servers=a\nlinger.mss=5\n")
    with pytest.raises(UnknownConfigError, match=r"linger\.mss is not a setting; did you mean "):
        read(file)
    assert "linger.ms" in refused(file)


def test_a_value_is_checked_as_in_python(write):
    text = refused(write("bootstrap.servers=a\nlinger.ms=soon\n"))
    assert "linger_ms='soon' is not valid: it must be an integer" in text


def test_a_number_of_thousands_of_digits_is_refused_by_its_setting():
    with pytest.raises(InvalidConfigurationError, match=r"linger_ms='1111.* between 0 and "):
        ProducerConfig.from_properties({"bootstrap.servers": "a:1", "linger.ms": "1" * 5_000})


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"linger.ms=1\n{SECRET}\n", ", line 2: not of the form NAME=VALUE"),
        (f"client.id=a\\\n b\nssl.password={SECRET}\\u12\n", ", line 3: \\u must be followed"),
    ],
)
def test_a_line_that_cannot_be_read_is_named_by_its_number_and_not_shown(write, text, told):
    assert told in refused(write(text))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    assert "No such file" in refused(tmp_path / "nowhere.properties")
    file = tmp_path / "latin.properties"
    file.write_bytes(b"client.id=\xe4\n")
    assert "cannot be read as UTF-8" in refused(file)


# --- TOML ---------------------------------------------------------------------------------------


def test_a_toml_file_has_types_and_either_spelling(write, monkeypatch):
    monkeypatch.setenv("THE_LINGER", "9")
    file = write(
        'bootstrap_servers = ["a:1", "b:2"]\nretries = 3\nenable.idempotence = true\n'
        'linger.ms = "${env:THE_LINGER}"\n"batch.size" = 100\n',
        "client.toml",
    )
    config = read(file)
    assert config.bootstrap_addresses == (("a", 1), ("b", 2))
    assert (config.retries, config.linger_ms, config.batch_size) == (3, 9, 100)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("linger_ms = ", "is not valid TOML"),
        ("linger_ms = 1.5", "linger_ms must be a text, an integer"),
        ('linger.ms = 1\n"linger.ms" = 2', "linger.ms is given twice"),
        ('linger.ms = 1\n"linger_ms" = 2', "are the same setting"),
    ],
)
def test_a_wrong_toml_file_is_refused(write, text, told):
    assert told in refused(write(text, "client.toml"))


# --- references ---------------------------------------------------------------------------------

LOGIN = "bootstrap.servers=a\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"


def test_references_to_variables_and_files_are_resolved(write, monkeypatch, tmp_path):
    monkeypatch.setenv("KAFKA_USER", "me")
    secrets = write(f"kafka.password={SECRET}\n", "secrets.properties")
    write(f"{SECRET}\n", "token")
    config = read(
        write(
            f"{LOGIN}sasl.plain.username=${{env:KAFKA_USER}}-x\n"
            f"sasl.plain.password=${{file:{secrets}:kafka.password}}\n"
            f"ssl.key.password=${{directory:{tmp_path}:token}}\n"
        )
    )
    assert config.security["sasl_plain_username"] == "me-x"
    assert config.security["sasl_plain_password"] == config.security["ssl_password"] == SECRET
    assert SECRET not in repr(config)
    assert type(config.security["sasl_plain_username"]) is str
    assert pickle.loads(pickle.dumps(config)) == config


def test_a_reference_in_a_login_of_java_is_resolved(write, monkeypatch):
    monkeypatch.setenv("KAFKA_PASSWORD", SECRET)
    config = read(
        write(
            "bootstrap.servers=a\nsecurity.protocol=SASL_SSL\nsasl.mechanism=PLAIN\n"
            "sasl.jaas.config=a.PlainLoginModule required "
            'username="me" password="${env:KAFKA_PASSWORD}";\n'
        )
    )
    assert config.security["sasl_plain_password"] == SECRET


def test_a_resolved_text_is_not_resolved_again(write, monkeypatch):
    monkeypatch.setenv("TRICK", "${env:HOME}\\1")
    assert read(write("bootstrap.servers=a\nclient.id=${env:TRICK}\n")).client_id == (
        "${env:HOME}\\1"
    )


def test_settings_of_python_are_taken_as_they_are(write, monkeypatch):
    monkeypatch.setenv("NAME", "other")
    text = "${env:NAME}"
    assert read(write("bootstrap.servers=a\n"), client_id=text).client_id == text
    given = {"bootstrap.servers": "a", "client.id": text}
    assert ProducerConfig.from_properties(given).client_id == text


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("${env:NOT_SET_ANYWHERE}", "needs the environment variable NOT_SET_ANYWHERE: set it"),
        ("${file:nowhere.properties:key}", "nowhere.properties cannot be read: No such file"),
        ("${directory:nowhere:key}", "nowhere/key cannot be read: No such file"),
        ("${file:nowhere.properties}", "is none of ${env:NAME}, ${file:PATH:KEY}"),
        ("${env:}", "is none of ${env:NAME}, ${file:PATH:KEY}"),
        (f"${{{SECRET}}}", "is none of ${env:NAME}, ${file:PATH:KEY}"),
        (f"${{vault:{SECRET}:x}}", "is none of ${env:NAME}, ${file:PATH:KEY}"),
    ],
)
def test_a_reference_that_leads_nowhere_names_the_setting_and_the_place(write, value, told):
    text = refused(write(f"bootstrap.servers=a\nsasl.plain.password={value}\n"))
    assert ": sasl.plain.password" in text
    assert told in text


def test_a_key_that_is_missing_names_the_setting_the_file_and_the_key(write):
    secrets = write(f"other={SECRET}\n", "secrets.properties")
    file = write(f"{LOGIN}sasl.plain.password=${{file:{secrets}:password}}\n")
    assert refused(file) == (
        f"{file}: sasl.plain.password needs the key password in {secrets}: add it"
    )


def test_a_refused_value_is_shown_as_it_stands_in_the_file(write, monkeypatch):
    monkeypatch.setenv("THE_SECRET", SECRET)
    for name, value in (("linger.ms", "x${env:THE_SECRET}"), ("acks", "${env:THE_SECRET}")):
        text = refused(write(f"bootstrap.servers=a\n{name}={value}\n"))
        assert f"='{value}' is not valid" in text


def test_javas_settings_of_its_providers_may_stand_in_the_file(write):
    config = read(
        write(
            "bootstrap.servers=a\nconfig.providers=env, file,directory\n"
            f"config.providers.env.class={PROVIDER}.EnvVarConfigProvider\n"
            f"config.providers.file.class={PROVIDER}.FileConfigProvider\n"
            f"config.providers.directory.class={PROVIDER}.DirectoryConfigProvider\n"
        )
    )
    assert config.bootstrap_servers == ("a:9092",)


@pytest.mark.parametrize(
    "line",
    [
        "config.providers=vault",
        "config.providers.env.class=my.VaultProvider",
        "config.providers.file.param.allowed.paths=/run",
    ],
)
def test_another_provider_of_java_is_refused(write, line):
    text = refused(write(f"bootstrap.servers=a\n{line}\n"))
    assert "other classes than Java's env, file and directory" in text
