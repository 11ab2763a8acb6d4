from tests.crash.places import place as place  # a fixture
